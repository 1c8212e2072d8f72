#![no_main]
//! Any bytes, in any two pieces: no panic, and the same answer as in one piece.

use libfuzzer_sys::fuzz_target;
use unslow_resp::{Frame, Scan, Scanner, Split, Splitter, Value};

fuzz_target!(|data: &[u8]| {
    let Some((&cut, bytes)) = data.split_first() else { return };
    let whole = Scanner::default().scan(bytes);
    let mut pieces = Scanner::default();
    let cut = usize::from(cut).min(bytes.len());
    match pieces.scan(&bytes[..cut]) {
        // What was complete or wrong early is so in the whole.
        Ok(Scan::Complete(n)) => assert_eq!(whole, Ok(Scan::Complete(n))),
        Ok(Scan::Incomplete) => assert_eq!(pieces.scan(bytes).map_err(|e| e.kind), whole.clone().map_err(|e| e.kind)),
        Err(e) => assert_eq!(whole.clone().map_err(|e| e.kind), Err(e.kind)),
    }
    if let Ok(Scan::Complete(n)) = whole {
        let _ = Value::from(Frame::new(&bytes[..n]));
    }
    let _ = Value::from(Frame::new(bytes));
    // Split as it comes by, keeping only what is asked for: it ends, and every frame is at least a byte.
    let (mut splitter, mut kept, mut rest) = (Splitter::default(), Vec::new(), bytes);
    loop {
        match splitter.split(&kept) {
            Ok(Split::Done(done)) => {
                assert!(done.end > 0);
                drop(kept.drain(..done.end));
            }
            Ok(Split::More { consumed }) => {
                drop(kept.drain(..consumed));
                if rest.is_empty() {
                    return;
                }
                let (piece, more) = rest.split_at(cut.clamp(1, rest.len()));
                kept.extend_from_slice(piece);
                rest = more;
            }
            Err(_) => return,
        }
    }
});
