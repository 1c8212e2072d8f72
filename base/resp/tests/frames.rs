//! Frames in pieces, frames that lie, and frames that are none.

use proptest::prelude::*;
use unslow_resp::{ErrorKind, Frame, Kind, Limits, Scan, Scanner, Value, write_command};

fn whole(bytes: &[u8]) -> Value {
    let mut scanner = Scanner::default();
    assert_eq!(scanner.scan(bytes), Ok(Scan::Complete(bytes.len())), "{:?}", String::from_utf8_lossy(bytes));
    Value::from(Frame::new(bytes))
}

fn refusal(bytes: &[u8]) -> ErrorKind {
    Scanner::default().scan(bytes).expect_err("should be refused").kind
}

#[test]
fn reads_every_type_of_both_protocols() {
    let text = |s: &str| Value::Text(s.into());
    for (bytes, expected) in [
        (&b"+OK\r\n"[..], text("OK")),
        (b"-ERR no\r\n", Value::Error("ERR no".into())),
        (b"!6\r\nERR no\r\n", Value::Error("ERR no".into())),
        (b":-42\r\n", Value::Integer(-42)),
        (b"$5\r\na\r\nbc\r\n", text("a\r\nbc")),
        (b"$0\r\n\r\n", text("")),
        (b"$-1\r\n", Value::Null),
        (b"*-1\r\n", Value::Null),
        (b"_\r\n", Value::Null),
        (b"#t\r\n", Value::Boolean(true)),
        (b",1.5\r\n", Value::Double(1.5)),
        (b"(123456789012345678901\r\n", text("123456789012345678901")),
        (b"=7\r\ntxt:abc\r\n", text("abc")),
        (b"*0\r\n", Value::Array(vec![])),
        (b"%1\r\n+a\r\n:1\r\n", Value::Array(vec![text("a"), Value::Integer(1)])),
        (b"~1\r\n+a\r\n", Value::Array(vec![text("a")])),
        (b">2\r\n+m\r\n:1\r\n", Value::Push(vec![text("m"), Value::Integer(1)])),
        (b"|1\r\n+ttl\r\n:9\r\n+v\r\n", text("v")),
        (b"*2\r\n|1\r\n+a\r\n*1\r\n:1\r\n:5\r\n:6\r\n", Value::Array(vec![Value::Integer(5), Value::Integer(6)])),
        (b"|0\r\n+v\r\n", text("v")),
    ] {
        assert_eq!(whole(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn says_incomplete_for_every_prefix_and_then_complete() {
    let bytes = b"*3\r\n$3\r\nabc\r\n%1\r\n+k\r\n*2\r\n:1\r\n:2\r\n|1\r\n+x\r\n:1\r\n+end\r\n";
    let mut scanner = Scanner::default();
    for cut in 0..bytes.len() {
        assert_eq!(scanner.scan(&bytes[..cut]), Ok(Scan::Incomplete), "cut at {cut}");
    }
    assert_eq!(scanner.scan(bytes), Ok(Scan::Complete(bytes.len())));
    assert_eq!(scanner.scan(b"+OK\r\n"), Ok(Scan::Complete(5)), "ready for the next frame");
}

#[test]
fn refuses_what_is_not_resp() {
    assert_eq!(refusal(b"HTTP/1.1 400 Bad Request\r\n"), ErrorKind::UnknownType(b'H'));
    assert_eq!(refusal(b"\x15\x03\x03"), ErrorKind::UnknownType(0x15));
    assert_eq!(refusal(b":12x\r\n"), ErrorKind::BadNumber);
    assert_eq!(refusal(b"$-2\r\n"), ErrorKind::BadNumber);
    assert_eq!(refusal(b"$\r\n"), ErrorKind::BadNumber);
    assert_eq!(refusal(b"$3\r\nabcde"), ErrorKind::MissingCrLf);
    assert_eq!(refusal(b"+OK\n"), ErrorKind::MissingCrLf);
}

#[test]
fn believes_no_length_it_cannot_afford() {
    assert_eq!(refusal(b"$9223372036854775807\r\n"), ErrorKind::TooLarge);
    assert_eq!(refusal(b"*9223372036854775807\r\n"), ErrorKind::TooLarge);
    assert_eq!(refusal(b"*99999999999999999999\r\n"), ErrorKind::BadNumber);
    assert_eq!(refusal(&b"*1\r\n".repeat(40)), ErrorKind::TooDeep);
    let small = Limits { frame_bytes_max: 16, ..Limits::default() };
    assert_eq!(Scanner::new(small).scan(b"$15\r\n").unwrap_err().kind, ErrorKind::TooLarge);
    assert_eq!(Scanner::default().scan(&[b'+'; 70_000]).unwrap_err().kind, ErrorKind::TooLarge);
}

#[test]
fn elements_are_counted_over_all_levels_before_they_come() {
    let few = || Scanner::new(Limits { elements_max: 6, ..Limits::default() });
    for (bytes, fits) in [
        (&b"*6\r\n"[..], true),
        (b"*7\r\n", false),
        (b"%3\r\n", true),
        (b"%4\r\n", false),
        // The inner array is one of the outer one's elements, and has its own.
        (b"*3\r\n:1\r\n*3\r\n", true),
        (b"*3\r\n:1\r\n*4\r\n", false),
        (b"*2\r\n*2\r\n:1\r\n:2\r\n*3\r\n", false),
    ] {
        let scanned = few().scan(bytes);
        let expected = if fits { Ok(Scan::Incomplete) } else { Err(ErrorKind::TooLarge) };
        assert_eq!(scanned.map_err(|e| e.kind), expected, "{:?}", String::from_utf8_lossy(bytes));
    }
    // The next frame starts from none.
    let mut scanner = few();
    for _ in 0..3 {
        assert_eq!(scanner.scan(b"*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n"), Ok(Scan::Complete(20)));
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::Integer),
        any::<bool>().prop_map(Value::Boolean),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Text),
        "[A-Z]{3} [a-z ]{0,20}".prop_map(Value::Error),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| prop::collection::vec(inner, 0..8).prop_map(Value::Array))
}

fn encode(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"_\r\n"),
        Value::Integer(n) => out.extend_from_slice(format!(":{n}\r\n").as_bytes()),
        Value::Boolean(b) => out.extend_from_slice(if *b { b"#t\r\n" } else { b"#f\r\n" }),
        Value::Text(t) => {
            out.extend_from_slice(format!("${}\r\n", t.len()).as_bytes());
            out.extend_from_slice(t);
            out.extend_from_slice(b"\r\n");
        }
        Value::Error(e) => out.extend_from_slice(format!("-{e}\r\n").as_bytes()),
        Value::Array(items) => {
            out.extend_from_slice(format!("*{}\r\n", items.len()).as_bytes());
            items.iter().for_each(|item| encode(item, out));
        }
        Value::Double(_) | Value::Push(_) => unreachable!("not generated"),
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_in_any_pieces(values in prop::collection::vec(value(), 1..4), step in 1usize..30) {
        let mut stream = Vec::new();
        values.iter().for_each(|v| encode(v, &mut stream));
        let (mut scanner, mut start, mut seen, mut read) = (Scanner::default(), 0, 0, Vec::new());
        while read.len() < values.len() {
            match scanner.scan(&stream[start..seen]).unwrap() {
                Scan::Complete(len) => {
                    read.push(Value::from(Frame::new(&stream[start..start + len])));
                    start += len;
                }
                Scan::Incomplete => {
                    prop_assert!(seen < stream.len(), "incomplete at the end");
                    seen = (seen + step).min(stream.len());
                }
            }
        }
        prop_assert_eq!(start, stream.len());
        prop_assert_eq!(read, values);
    }

    #[test]
    fn any_bytes_at_all_neither_panic_nor_hang(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(Scan::Complete(len)) = Scanner::default().scan(&bytes) {
            let _ = Value::from(Frame::new(&bytes[..len]));
        }
        let _ = Value::from(Frame::new(&bytes));
    }

    #[test]
    fn a_written_command_is_an_array_of_its_arguments(
        args in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..10),
    ) {
        let mut out = Vec::new();
        write_command(&mut out, &args);
        let mut scanner = Scanner::default();
        prop_assert_eq!(scanner.scan(&out), Ok(Scan::Complete(out.len())));
        let text = |f: Frame<'_>| {
            assert_eq!(f.kind(), Kind::Bulk);
            f.text().to_vec()
        };
        let items: Vec<Vec<u8>> = Frame::new(&out).items().map(text).collect();
        prop_assert_eq!(items, args);
    }
}
