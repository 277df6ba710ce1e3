// SPDX-License-Identifier: GPL-2.0-only
/*
 * Messages that can be checked, and the order they come in.
 *
 * A message is made of little endian 64-bit words: whose it is (connection << 32 |
 * tag), its number, and words that follow from these and from where they stand.
 */
#include <linux/hash.h>
#include <linux/unaligned.h>
#include "ulp.h"

static u64 word(u32 id, u32 tag, u64 seq, u32 n)
{
	return hash_64(seq + ((u64)id << 32) + tag, 64) + hash_64(n, 64);
}

void message_write(u8 *buf, u32 size, u32 id, u32 tag, u64 seq)
{
	u32 n;

	put_unaligned_le64((u64)id << 32 | tag, buf);
	put_unaligned_le64(seq, buf + 8);
	for (n = 2; n < size / 8; n++)
		put_unaligned_le64(word(id, tag, seq, n), buf + 8 * n);
}

u64 message_seq(const u8 *buf)
{
	return get_unaligned_le64(buf + 8);
}

u32 message_tag(const u8 *buf)
{
	return get_unaligned_le64(buf);
}

/* Is it one of this connection, with every byte in its place? */
bool message_check(const u8 *buf, u32 size, u32 id)
{
	u32 n, tag = message_tag(buf);
	u64 seq = message_seq(buf);

	if (get_unaligned_le64(buf) >> 32 != id)
		return false;
	for (n = 2; n < size / 8; n++)
		if (get_unaligned_le64(buf + 8 * n) != word(id, tag, seq, n))
			return false;
	return true;
}

/*
 * Takes the next message into account and returns whether it is new. The number of
 * one that is not intact says nothing: it stands for the one that was due.
 */
bool sequence_take(struct sequence *s, enum side who, bool intact, u64 seq)
{
	u64 ahead, behind;

	if (!intact) {
		s->corrupt++;
		count(who, CORRUPT);
		seq = s->next;
	}
	if (seq >= s->next) {
		ahead = seq - s->next;
		s->lost += ahead;
		atomic64_add(ahead, &counters[who][LOST]);
		s->seen = ahead < 63 ? s->seen << (ahead + 1) | 1 : 1;
		s->next = seq + 1;
		return true;
	}
	behind = s->next - 1 - seq;
	if (behind < 64 && !(s->seen & BIT_ULL(behind)) && s->lost) {
		s->seen |= BIT_ULL(behind);
		s->lost--;
		atomic64_dec(&counters[who][LOST]);
		s->reordered++;
		count(who, REORDERED);
		return true;
	}
	s->duplicate++;
	count(who, DUPLICATE);
	return false;
}
