// SPDX-License-Identifier: GPL-2.0-only

//! Knobs of an HCA.

use vfabric_core::model::knobs::{KnobError, Knobs};

#[test]
fn what_is_shown_can_be_set() {
    let mut a = Knobs::PLAIN;
    a.set(&Knobs::MLX5.to_string()).unwrap();
    assert_eq!(a, Knobs::MLX5);
    a.set("profile=plain").unwrap();
    assert_eq!(a, Knobs::PLAIN);
    a.set("profile=mlx5 timer_stretch=2").unwrap();
    assert_eq!(a.rc.timer_stretch, 2);
    assert!(a.round_depth);
}

#[test]
fn a_bad_word_changes_nothing() {
    for (text, why) in [
        ("", KnobError::BadWord),
        ("scrub", KnobError::BadWord),
        ("modify_us=5 colour=red", KnobError::UnknownName),
        ("modify_us=5 scrub=2", KnobError::BadValue),
        ("timer_stretch=0", KnobError::BadValue),
        ("timer_stretch=5", KnobError::BadValue),
        ("path_mig_events=3", KnobError::BadValue),
        ("ack_delay_us=1000001", KnobError::BadValue),
        ("modify_us=-1", KnobError::BadValue),
        ("modified_us=10000001", KnobError::BadValue),
        ("max_cqe=many", KnobError::BadValue),
        ("ca_ack_delay=32", KnobError::BadValue),
        ("profile=other", KnobError::BadValue),
    ] {
        let mut knobs = Knobs::PLAIN;
        assert_eq!(knobs.set(text), Err(why), "{text}");
        assert_eq!(knobs, Knobs::PLAIN, "{text}");
    }
}

#[test]
fn the_nth_modify_fails_once() {
    let mut knobs = Knobs::PLAIN;
    knobs.set("fail_modify=3").unwrap();
    let fails: Vec<bool> = (0..6).map(|_| knobs.modify_fails()).collect();
    assert_eq!(fails, [false, false, true, false, false, false]);
}

#[test]
fn a_limit_of_nothing_is_none() {
    let mut knobs = Knobs::PLAIN;
    assert!(Knobs::allows(knobs.max_cqe, u32::MAX));
    knobs.set("max_cqe=16 max_send_wr=8").unwrap();
    assert!(Knobs::allows(knobs.max_cqe, 16) && !Knobs::allows(knobs.max_cqe, 17));
    assert!(Knobs::allows(knobs.max_send_wr, 8) && !Knobs::allows(knobs.max_send_wr, 9));
    let mut same = Knobs::PLAIN;
    same.set(&knobs.to_string()).unwrap();
    assert_eq!(same, knobs);
}
