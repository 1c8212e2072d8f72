#![no_main]
//! Any bytes, in any two pieces: no panic, and the same answer as in one piece.

use libfuzzer_sys::fuzz_target;
use unslow_resp::{Frame, Scan, Scanner, Value};

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
});
