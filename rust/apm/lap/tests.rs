// SPDX-License-Identifier: GPL-2.0-only

use super::*;
use crate::wire::cm::path::CmPath;
use crate::wire::cm::Ids;
use proptest::prelude::*;

const PREFIX: u64 = 0xfe80 << 48;
const PEER: u64 = 0x100;
const THIRD: u64 = 0x300;

/// The paths of a connection between ports of the same number, as we see them.
fn path(port: u32) -> FullPath {
    FullPath {
        port,
        sgid: Gid::new(PREFIX, 0x200 + u64::from(port)),
        dgid: Gid::new(PREFIX, PEER + u64::from(port)),
        slid: 20 + port as u16,
        dlid: 10 + port as u16,
        sl: 2,
        rate: 3,
        packet_life_time: 15,
        ..FullPath::default()
    }
}

/// The peer offers the path between the second ports.
fn lap() -> Lap {
    Lap {
        tid: 7,
        ids: Ids {
            local: 1,
            remote: 2,
        },
        qpn: 0x77,
        remote_cm_response_timeout: 20,
        alternate: path(2).to_cm(16).reversed(),
        kind: Kind::Ordinary,
    }
}

const SOURCE: Source = Source {
    lid: 11,
    local_lid: 21,
    gid: None,
};

fn connection() -> Connection {
    Connection {
        active: false,
        served: true,
        established: true,
        qpn: 0x77,
        in_use: path(1),
        loaded: None,
        mig: PathMigState::Migrated,
        told: true,
        ca_guid: PEER,
        node_guid: 0,
    }
}

fn facts() -> Facts {
    Facts {
        connection: Some(connection()),
        local: Some(LocalPort {
            num: 2,
            gid: path(2).sgid,
            lid: 22,
            lmc: 0,
            active: true,
            has_pkey: true,
        }),
        source: Port::NotAsked,
        far: Port::Of {
            node: PEER,
            lid: 12,
        },
        far_lid: Port::NotAsked,
    }
}

fn with(change: impl FnOnce(&mut Connection)) -> Facts {
    let mut conn = connection();
    change(&mut conn);
    Facts {
        connection: Some(conn),
        ..facts()
    }
}

fn altered(change: impl FnOnce(&mut CmPath)) -> Lap {
    let mut lap = lap();
    change(&mut lap.alternate);
    lap
}

fn answers(lap: &Lap, facts: &Facts, status: Status) {
    assert_eq!(judge(lap, &SOURCE, facts), Verdict::Answer(status));
}

#[test]
fn a_good_one_is_loaded() {
    let Verdict::Load(loaded) = judge(&lap(), &SOURCE, &facts()) else {
        panic!("refused");
    };
    // As the peer told it, but for the lifetime, which is that of the path in use.
    assert_eq!(loaded, path(2));
    // Also where an alternate is loaded already, the same or another one.
    for mig in [PathMigState::Rearm, PathMigState::Armed] {
        let facts = with(|c| {
            c.mig = mig;
            c.loaded = Some(path(2));
        });
        assert_eq!(judge(&lap(), &SOURCE, &facts), Verdict::Load(path(2)));
    }
}

#[test]
fn about_no_connection_of_ours() {
    let none = Facts {
        connection: None,
        ..facts()
    };
    answers(&lap(), &none, Status::INVALID_COMM_ID);
    answers(&lap(), &with(|c| c.served = false), Status::UNSUPPORTED);
    answers(&lap(), &with(|c| c.active = true), Status::REJECTED);
    answers(&lap(), &with(|c| c.qpn = 0x78), Status::QPN);
    let set_up = with(|c| c.established = false);
    assert_eq!(judge(&lap(), &SOURCE, &set_up), Verdict::Drop);
}

#[test]
fn values_that_say_no() {
    answers(&altered(|p| p.hop_limit = 64), &facts(), Status::HOP_LIMIT);
    answers(
        &altered(|p| p.subnet_local = false),
        &facts(),
        Status::HOP_LIMIT,
    );
    answers(&altered(|p| p.local_lid = 0xffff), &facts(), Status::LID);
    answers(&altered(|p| p.remote_lid = 0), &facts(), Status::LID);
    answers(&altered(|p| p.rate = 1), &facts(), Status::RATE);
    answers(&altered(|p| p.rate = 40), &facts(), Status::RATE);
    answers(&altered(|p| p.sl = 3), &facts(), Status::SL);
    // A GRH inside the subnet is nothing to object to, nor are flow label and traffic class.
    let lap = altered(|p| {
        p.hop_limit = 1;
        p.flow_label = 5;
        p.traffic_class = 6;
    });
    assert!(matches!(judge(&lap, &SOURCE, &facts()), Verdict::Load(_)));
}

#[test]
fn our_end_of_the_path() {
    let local = |change: fn(&mut LocalPort)| {
        let mut facts = facts();
        change(facts.local.as_mut().unwrap());
        facts
    };
    let elsewhere = Facts {
        local: None,
        ..facts()
    };
    answers(&lap(), &elsewhere, Status::GID);
    answers(&lap(), &local(|l| l.active = false), Status::REJECTED);
    answers(&lap(), &local(|l| l.has_pkey = false), Status::REJECTED);
    answers(&altered(|p| p.remote_lid = 23), &facts(), Status::LID);
    let lmc = local(|l| l.lmc = 1);
    let lap = altered(|p| p.remote_lid = 23);
    assert!(matches!(judge(&lap, &SOURCE, &lmc), Verdict::Load(p) if p.slid == 23));
}

/// Whether this port is the peer's and begins with a lower LID.
fn peers_next(port: Port, next: u16) -> bool {
    matches!(port, Port::Of { node: PEER, lid } if lid < next)
}

#[test]
fn the_peers_end_of_the_path() {
    let far = |far| Facts { far, ..facts() };
    assert_eq!(
        judge(&lap(), &SOURCE, &far(Port::NotAsked)),
        Verdict::Ask(Question::Far(path(2).dgid, 12))
    );
    answers(&lap(), &far(Port::Nobody), Status::GID);
    let third = Port::Of {
        node: THIRD,
        lid: 12,
    };
    answers(&lap(), &far(third), Status::GID);
    let other_lid = Port::Of {
        node: PEER,
        lid: 16,
    };
    answers(&lap(), &far(other_lid), Status::LID);
    // One LID on: with LMC it is the peer's as well, without it may be anybody's.
    let next = altered(|p| p.local_lid = 13);
    let verdict = judge(&next, &SOURCE, &facts());
    assert_eq!(verdict, Verdict::Ask(Question::FarLid(13)));
    let whose = |far_lid| Facts { far_lid, ..facts() };
    let verdict = judge(&next, &SOURCE, &whose(facts().far));
    assert!(matches!(verdict, Verdict::Load(p) if p.dlid == 13));
    for node in [PEER, THIRD] {
        let far_lid = Port::Of { node, lid: 13 };
        answers(&next, &whose(far_lid), Status::LID);
    }
    answers(&next, &whose(Port::Nobody), Status::LID);
    // A virtual function: SA knows another NodeGUID than the REQ.
    let mut virtual_function = with(|c| {
        c.ca_guid = 0x999;
        c.node_guid = THIRD;
    });
    virtual_function.far = third;
    let verdict = judge(&lap(), &SOURCE, &virtual_function);
    assert_eq!(verdict, Verdict::Load(path(2)));
    // Nothing known of the peer is nothing to compare with.
    let mut unknown = with(|c| c.ca_guid = 0);
    unknown.far = Port::Of { node: 0, lid: 12 };
    answers(&lap(), &unknown, Status::GID);
    // The port of the path in use needs no asking.
    let lap = altered(|p| {
        p.local_gid = path(1).dgid;
        p.local_lid = path(1).dlid;
    });
    let verdict = judge(&lap, &SOURCE, &far(Port::NotAsked));
    assert!(matches!(verdict, Verdict::Load(p) if p.dlid == 11));
}

#[test]
fn where_it_comes_from() {
    let from = |lid, gid| Source { lid, gid, ..SOURCE };
    let peer = |source| Facts { source, ..facts() };
    let other = from(12, None);
    assert_eq!(
        judge(&lap(), &other, &facts()),
        Verdict::Ask(Question::Source(12))
    );
    let good = Port::Of {
        node: PEER,
        lid: 12,
    };
    let load = Verdict::Load(path(2));
    assert_eq!(judge(&lap(), &other, &peer(good)), load);
    let third = Port::Of {
        node: THIRD,
        lid: 30,
    };
    let rejected = Verdict::Answer(Status::REJECTED);
    assert_eq!(judge(&lap(), &from(30, None), &peer(third)), rejected);
    assert_eq!(judge(&lap(), &other, &peer(Port::Nobody)), rejected);
    // With a GRH the GID counts as well.
    assert_eq!(judge(&lap(), &from(11, Some(path(1).dgid)), &facts()), load);
    let forged = Some(Gid::new(PREFIX, THIRD));
    assert_eq!(judge(&lap(), &from(11, forged), &peer(good)), rejected);
    // By the alternate that is loaded: the peer has migrated.
    let loaded = with(|c| {
        c.loaded = Some(path(2));
        c.mig = PathMigState::Armed;
    });
    assert_eq!(judge(&lap(), &other, &loaded), load);
}

#[test]
fn a_peer_that_has_not_followed() {
    let untold = with(|c| c.told = false);
    assert!(matches!(judge(&lap(), &SOURCE, &untold), Verdict::Load(_)));
    let elsewhere = Source {
        local_lid: 22,
        ..SOURCE
    };
    assert_eq!(judge(&lap(), &elsewhere, &untold), Verdict::Drop);
    assert!(matches!(
        judge(&lap(), &elsewhere, &facts()),
        Verdict::Load(_)
    ));
}

#[test]
fn the_path_in_use() {
    let mut lap = lap();
    lap.alternate = path(1).to_cm(16).reversed();
    let facts = |mig| Facts {
        local: Some(LocalPort {
            num: 1,
            lid: 21,
            ..facts().local.unwrap()
        }),
        ..with(|c| {
            c.mig = mig;
            c.loaded = Some(path(2));
        })
    };
    // The pitfall: ARMED, so the peer has migrated and nobody told us.
    assert_eq!(
        judge(&lap, &SOURCE, &facts(PathMigState::Armed)),
        Verdict::Force(Status::SAME_AS_PRIMARY)
    );
    for mig in [PathMigState::Rearm, PathMigState::Migrated] {
        answers(&lap, &facts(mig), Status::SAME_AS_PRIMARY);
    }
    // Once forced, what was the path in use is a good alternate.
    let mut after = facts(PathMigState::Migrated);
    let conn = after.connection.as_mut().unwrap();
    conn.in_use = path(2);
    conn.loaded = None;
    after.far = Port::Of {
        node: PEER,
        lid: 11,
    };
    after.source = after.far;
    assert_eq!(judge(&lap, &SOURCE, &after), Verdict::Load(path(1)));
}

#[test]
fn wishes() {
    let wish = |kind, number| Lap {
        kind,
        alternate: path(number).to_cm(16).reversed(),
        ..lap()
    };
    let dead = wish(Kind::DeadStandby, 2);
    let back = wish(Kind::PortBack, 1);
    let active = |loaded: bool| {
        with(|c| {
            c.active = true;
            c.loaded = loaded.then_some(path(2));
            c.mig = PathMigState::Armed;
        })
    };
    assert_eq!(judge(&dead, &SOURCE, &active(true)), Verdict::Seek);
    assert_eq!(judge(&back, &SOURCE, &active(true)), Verdict::Kick);
    assert_eq!(judge(&back, &SOURCE, &active(false)), Verdict::Kick);
    // It has another one by now, or none.
    answers(&dead, &active(false), Status::REJECTED);
    answers(&wish(Kind::DeadStandby, 3), &active(true), Status::REJECTED);
    // The passive side does not search.
    answers(&dead, &with(|c| c.loaded = Some(path(2))), Status::REJECTED);
    answers(&back, &facts(), Status::REJECTED);
    // From elsewhere.
    for wish in [dead, back] {
        let stranger = Source { lid: 99, ..SOURCE };
        let mut facts = active(true);
        assert_eq!(
            judge(&wish, &stranger, &facts),
            Verdict::Ask(Question::Source(99))
        );
        facts.source = Port::Of { node: 1, lid: 99 };
        assert_eq!(
            judge(&wish, &stranger, &facts),
            Verdict::Answer(Status::REJECTED)
        );
    }
}

#[test]
fn notices() {
    let notice = Lap {
        kind: Kind::Notice,
        ..lap()
    };
    let state = |mig, loaded: bool, active| {
        with(|c| {
            c.mig = mig;
            c.loaded = loaded.then_some(path(2));
            c.active = active;
        })
    };
    // From either side.
    for active in [false, true] {
        assert_eq!(
            judge(&notice, &SOURCE, &state(PathMigState::Armed, true, active)),
            Verdict::Force(Status::REJECTED)
        );
        answers(
            &notice,
            &state(PathMigState::Rearm, true, active),
            Status::REJECTED,
        );
        answers(
            &notice,
            &state(PathMigState::Migrated, false, active),
            Status::REJECTED,
        );
    }
    // A path that is not the loaded one.
    let other = Lap {
        alternate: altered(|p| p.local_lid = 13).alternate,
        ..notice
    };
    answers(
        &other,
        &state(PathMigState::Armed, true, false),
        Status::REJECTED,
    );
    let third = Source { lid: 30, ..SOURCE };
    let mut forged = state(PathMigState::Armed, true, false);
    forged.source = Port::Of {
        node: THIRD,
        lid: 30,
    };
    assert_eq!(
        judge(&notice, &third, &forged),
        Verdict::Answer(Status::REJECTED)
    );
    // Done already.
    let done = with(|c| c.in_use = path(2));
    assert_eq!(
        judge(&notice, &Source { lid: 12, ..SOURCE }, &done),
        Verdict::Answer(Status::SAME_AS_PRIMARY)
    );
}

#[test]
fn kinds_that_are_not_for_us() {
    let own = Lap {
        kind: Kind::Own(5),
        ..lap()
    };
    assert_eq!(judge(&own, &SOURCE, &facts()), Verdict::Drop);
    let unknown = Lap {
        kind: Kind::Unknown,
        ..lap()
    };
    answers(&unknown, &facts(), Status::UNSUPPORTED);
}

fn any_path() -> impl Strategy<Value = CmPath> {
    let port = 0u16..4;
    let values = (0u8..3, 0u8..4, any::<bool>(), 0u8..4);
    (port.clone(), port.clone(), port.clone(), port, values).prop_map(|(a, b, c, d, v)| CmPath {
        local_lid: 10 + a,
        remote_lid: 20 + b,
        local_gid: Gid::new(PREFIX, PEER + u64::from(c)),
        remote_gid: Gid::new(PREFIX, 0x200 + u64::from(d)),
        hop_limit: v.0,
        rate: v.1,
        subnet_local: v.2,
        sl: v.3,
        ..CmPath::default()
    })
}

fn any_port() -> impl Strategy<Value = Port> {
    prop_oneof![
        Just(Port::NotAsked),
        Just(Port::Nobody),
        (prop_oneof![Just(PEER), Just(THIRD), Just(0)], 10u16..14)
            .prop_map(|(node, lid)| Port::Of { node, lid }),
    ]
}

proptest! {
    /// Whatever comes: a path is loaded only if each condition holds, a QP is forced only when ARMED, and
    /// no question is asked whose answer is there.
    #[test]
    fn nothing_is_believed_too_easily(
        alternate in any_path(),
        source in (10u16..14).prop_map(|lid| Source { lid, ..SOURCE }),
        whose in any_port(),
        far in any_port(),
        mig in prop_oneof![
            Just(PathMigState::Migrated),
            Just(PathMigState::Rearm),
            Just(PathMigState::Armed)
        ],
        conn in (any::<[bool; 4]>(), 0u8..4),
        local in proptest::option::of((any::<[bool; 2]>(), 0u8..2)),
        notice in any::<bool>(),
        told in any::<bool>(),
    ) {
        let ([active, served, established, loaded], qpn) = conn;
        let connection = Connection {
            active: active && qpn > 1,
            served,
            established,
            qpn: 0x77 + u32::from(qpn == 0),
            loaded: loaded.then_some(path(2)),
            mig,
            told,
            ..connection()
        };
        let local = local.map(|([active, has_pkey], lmc)| LocalPort {
            num: 2,
            lid: 22,
            lmc,
            active,
            has_pkey,
            ..LocalPort::default()
        });
        let facts = Facts { connection: Some(connection), local, source: whose, far, far_lid: Port::NotAsked };
        let kind = if notice { Kind::Notice } else { Kind::Ordinary };
        let lap = Lap { alternate, kind, ..lap() };
        match judge(&lap, &source, &facts) {
            Verdict::Load(path) => {
                let local = local.unwrap();
                prop_assert!(!notice && !connection.active && served && established);
                prop_assert!(local.active && local.has_pkey);
                prop_assert!(in_range(22, local.lmc, path.slid) && path.port == 2);
                prop_assert!(!path.same_way(&connection.in_use));
                let used = path.dlid == 11 && path.dgid == self::path(1).dgid;
                let peers = |port| matches!(port, Port::Of { node: PEER, .. });
                let there = matches!(far, Port::Of { lid, .. } if lid == path.dlid);
                prop_assert!(used || (peers(far) && there));
                let known = source.lid == 11 || (loaded && source.lid == 12);
                prop_assert!(known || peers(whose));
                prop_assert_eq!(connection.qpn, lap.qpn);
            }
            Verdict::Force(_) => prop_assert!(served && established && mig == PathMigState::Armed),
            Verdict::Ask(Question::Source(_)) => prop_assert_eq!(whose, Port::NotAsked),
            Verdict::Ask(Question::Far(..)) => prop_assert_eq!(far, Port::NotAsked),
            Verdict::Ask(Question::FarLid(lid)) => prop_assert!(peers_next(far, lid)),
            Verdict::Answer(status) => prop_assert!(status != Status::LOADED),
            Verdict::Drop => prop_assert!(!established || !told),
            Verdict::Seek | Verdict::Kick => prop_assert!(false, "neither kind is sent here"),
        }
    }
}
