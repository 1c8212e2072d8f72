//! Calls that few programs make: each has the kernel's answer. The program is C, and says the same over TCP.

use super::handed::goes_on;
use super::*;

#[track_caller]
fn the_kernels_answers(part: &str) {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("rare_calls").display().to_string();
    let made = Command::new("gcc").args(["-w", "-o", &program, &here("bypass/rare_calls.c")]).status().unwrap();
    assert!(made.success());
    let port = server.port.to_string();
    // Over TCP, to see that the program is right.
    let mut plain = Command::new("timeout");
    plain.args([LIMIT, &program, &port, part]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut plain = Running(plain.spawn().unwrap());
    std::io::Write::write_all(&mut plain.0.stdin.take().unwrap(), b"go on\n").unwrap();
    let mut said = String::new();
    plain.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "good\nright\n", "over TCP");
    until("its connection to be gone", || server.clients() == 0);
    assert_eq!(goes_on(&meeting, &[&program, &port, part], 1), "right\n");
}

#[test]
fn sendmmsg_and_recvmmsg_carry_their_bytes() {
    the_kernels_answers("messages");
}

#[test]
fn splice_and_sendfile_carry_their_bytes() {
    the_kernels_answers("pipes");
}

#[test]
fn preadv2_and_pwritev2_without_a_place_carry_their_bytes() {
    the_kernels_answers("places");
}

#[test]
fn too_many_parts_and_pointers_to_nothing_are_refused() {
    the_kernels_answers("limits");
}

#[test]
fn a_duplicated_connection_is_told_of_by_both_names_in_one_set() {
    the_kernels_answers("names");
}

#[test]
fn a_connection_in_two_live_sets_is_told_of_in_both() {
    the_kernels_answers("sets");
}

#[test]
fn connections_come_into_several_sets_and_leave_them_while_all_are_waited_in() {
    the_kernels_answers("crowds");
}

#[test]
fn a_child_of_bare_fork_does_not_ring_what_its_parent_put_off() {
    the_kernels_answers("forks");
}

#[test]
fn a_handler_on_a_small_stack_may_write_several_parts() {
    the_kernels_answers("stack");
}
