//! Streams split as they come by: the same ends as when everything is kept, whatever the pieces.

use proptest::prelude::*;
use unslow_resp::{Done, ErrorKind, Limits, Scan, Scanner, Split, Splitter};

/// Feeds `stream` in pieces, keeping only what the splitter wants kept; the end of each frame, and what it was.
fn ends(stream: &[u8], step: usize) -> Vec<(usize, Done)> {
    let mut splitter = Splitter::default();
    let (mut out, mut kept, mut base, mut seen) = (Vec::new(), Vec::new(), 0, 0);
    loop {
        match splitter.split(&kept).unwrap() {
            Split::Done(done) => {
                base += done.end;
                kept.drain(..done.end);
                out.push((base, done));
            }
            Split::More { consumed } => {
                base += consumed;
                kept.drain(..consumed);
                if seen == stream.len() {
                    assert!(kept.is_empty(), "{} bytes are left", kept.len());
                    return out;
                }
                let next = (seen + step).min(stream.len());
                kept.extend_from_slice(&stream[seen..next]);
                seen = next;
            }
        }
    }
}

#[test]
fn tells_what_a_frame_was_however_it_came() {
    for (frame, kind, null, error_inside) in [
        (&b"$3\r\nabc\r\n"[..], b'$', false, false),
        (b"$0\r\n\r\n", b'$', false, false),
        (b"$-1\r\n", b'$', true, false),
        (b"_\r\n", b'_', true, false),
        (b"*-1\r\n", b'*', true, false),
        (b"-ERR no\r\n", b'-', false, false),
        (b"!6\r\nERR no\r\n", b'!', false, false),
        (b"*2\r\n+OK\r\n-ERR no\r\n", b'*', false, true),
        (b"*1\r\n*2\r\n:1\r\n!2\r\nno\r\n", b'*', false, true),
        (b"*2\r\n$-1\r\n:1\r\n", b'*', false, false),
        (b"|1\r\n+ttl\r\n:9\r\n$1\r\nv\r\n", b'$', false, false),
        (b">2\r\n+m\r\n:1\r\n", b'>', false, false),
        (b"%1\r\n+k\r\n~1\r\n#t\r\n", b'%', false, false),
    ] {
        // Twice, so that nothing of the first is left in the second.
        let stream = [frame, frame].concat();
        for step in [1, 2, 3, 7, 1000] {
            let all = ends(&stream, step);
            assert_eq!(all.len(), 2, "{:?} in steps of {step}", String::from_utf8_lossy(frame));
            for (i, (end, done)) in all.iter().enumerate() {
                let seen = (*end, done.kind, done.null, done.error_inside);
                assert_eq!(seen, (frame.len() * (i + 1), kind, null, error_inside), "in steps of {step}");
            }
            assert!(step < 1000 || all[0].1.whole);
        }
    }
}

#[test]
fn a_huge_blob_is_never_held() {
    let mut splitter = Splitter::new(Limits { frame_bytes_max: 1 << 50, ..Limits::default() });
    const SIZE: usize = 600 << 20; // more than the servers allow
    let head = format!("*2\r\n${SIZE}\r\n");
    assert_eq!(splitter.split(head.as_bytes()), Ok(Split::More { consumed: head.len() }));
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..600 {
        assert_eq!(splitter.split(&piece), Ok(Split::More { consumed: piece.len() }));
    }
    assert_eq!(splitter.split(b"\r"), Ok(Split::More { consumed: 1 }));
    let Ok(Split::Done(done)) = splitter.split(b"\n+end\r\n") else { panic!("it ends here") };
    assert_eq!((done.end, done.kind, done.whole), (7, b'*', false));
}

#[test]
fn a_text_of_any_length_is_stepped_over_and_headers_stay_short() {
    let limits = Limits { line_bytes_max: 32, ..Limits::default() };
    let long = "x".repeat(100);
    for (frame, kind, error_inside) in [
        (format!("-{long}\r\n"), b'-', false),
        (format!("+{long}\r\n"), b'+', false),
        (format!("({}\r\n", "7".repeat(100)), b'(', false),
        (format!("*3\r\n-{long}\r\n+{long}\r\n:1\r\n"), b'*', true),
        (format!("*2\r\n+\r{long}\r\n$3\r\nabc\r\n"), b'*', false),
    ] {
        let stream = frame.repeat(2);
        for step in [1, 7, 33, 40, 101, 102, 1000] {
            let mut splitter = Splitter::over_long_texts(limits);
            let (mut kept, mut ends, mut base) = (Vec::new(), Vec::new(), 0);
            for piece in stream.as_bytes().chunks(step) {
                kept.extend_from_slice(piece);
                loop {
                    let split = splitter.split(&kept).unwrap_or_else(|e| panic!("{frame:?} in steps of {step}: {e:?}"));
                    let (Split::More { consumed: end } | Split::Done(Done { end, .. })) = split;
                    base += end;
                    kept.drain(..end);
                    let Split::Done(done) = split else { break };
                    assert_eq!((done.kind, done.null, done.error_inside), (kind, false, error_inside), "{frame:?}");
                    ends.push(base);
                    if kept.is_empty() {
                        break;
                    }
                }
                assert!(kept.len() <= 33, "{} bytes are kept of {frame:?}", kept.len());
            }
            assert_eq!(ends, [frame.len(), 2 * frame.len()], "{frame:?} in steps of {step}");
        }
    }
    let refused = |bytes: &[u8]| Splitter::over_long_texts(limits).split(bytes).err().map(|e| e.kind);
    assert_eq!(refused(format!("${}", "0".repeat(100)).as_bytes()), Some(ErrorKind::TooLarge));
    assert_eq!(refused(format!(",{}", "0".repeat(100)).as_bytes()), Some(ErrorKind::TooLarge));
    assert_eq!(refused(format!("+{long}\nx").as_bytes()), Some(ErrorKind::MissingCrLf));
    let strict = Splitter::new(limits).split(format!("+{long}").as_bytes()).err().map(|e| e.kind);
    assert_eq!(strict, Some(ErrorKind::TooLarge));
}

#[test]
fn a_blob_without_its_end_is_refused_at_that_byte() {
    for pieces in [&[&b"$3\r\nabcde"[..]][..], &[b"$3\r\nab", b"c\rX"], &[b"$3\r\nabc", b"X"]] {
        let mut splitter = Splitter::default();
        let mut kept = Vec::new();
        let mut error = None;
        for piece in pieces {
            kept.extend_from_slice(piece);
            match splitter.split(&kept) {
                Ok(Split::More { consumed }) => drop(kept.drain(..consumed)),
                Ok(Split::Done(_)) => panic!("{pieces:?} is a frame"),
                Err(e) => error = Some(e.kind),
            }
        }
        assert_eq!(error, Some(ErrorKind::MissingCrLf), "{pieces:?}");
    }
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let blob = |kind: char| {
        prop::collection::vec(any::<u8>(), 0..50)
            .prop_map(move |b| [format!("{kind}{}\r\n", b.len()).as_bytes(), &b, b"\r\n"].concat())
    };
    let leaf = prop_oneof![
        blob('$'),
        blob('!'),
        Just(b"$-1\r\n".to_vec()),
        "[a-z ]{0,90}".prop_map(|t| format!("+{t}\r\n").into_bytes()),
        "[A-Z]{3} [a-z]{0,70}".prop_map(|t| format!("-{t}\r\n").into_bytes()),
        any::<i64>().prop_map(|n| format!(":{n}\r\n").into_bytes()),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        (prop::sample::select(vec!['*', '~', '>', '%', '|']), prop::collection::vec(inner.clone(), 0..6), inner)
            .prop_map(|(kind, items, value)| {
                let pairs = matches!(kind, '%' | '|');
                let n = if pairs { items.len() / 2 } else { items.len() };
                let items = &items[..if pairs { n * 2 } else { n }];
                let tail = if kind == '|' { value } else { Vec::new() };
                [format!("{kind}{n}\r\n").into_bytes(), items.concat(), tail].concat()
            })
    })
}

proptest! {
    #[test]
    fn ends_where_a_scanner_of_the_whole_ends(frames in prop::collection::vec(frame(), 1..6), step in 1usize..40) {
        let stream = frames.concat();
        let mut expected = Vec::new();
        let (mut scanner, mut at) = (Scanner::default(), 0);
        while at < stream.len() {
            let Ok(Scan::Complete(len)) = scanner.scan(&stream[at..]) else { panic!("frames are whole") };
            at += len;
            expected.push(at);
        }
        prop_assert_eq!(expected.len(), frames.len());
        let seen: Vec<usize> = ends(&stream, step).iter().map(|(end, _)| *end).collect();
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn any_bytes_in_any_pieces_neither_panic_nor_hang(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        step in 1usize..40,
    ) {
        let mut splitter = Splitter::default();
        let (mut kept, mut seen) = (Vec::new(), 0);
        for _ in 0..2000 {
            match splitter.split(&kept) {
                Ok(Split::Done(done)) => {
                    prop_assert!(done.end > 0 && done.end <= kept.len());
                    kept.drain(..done.end);
                }
                Ok(Split::More { consumed }) => {
                    kept.drain(..consumed);
                    if seen == bytes.len() {
                        return Ok(());
                    }
                    let next = (seen + step).min(bytes.len());
                    kept.extend_from_slice(&bytes[seen..next]);
                    seen = next;
                }
                Err(_) => return Ok(()),
            }
        }
        prop_assert!(false, "it goes on for ever");
    }
}
