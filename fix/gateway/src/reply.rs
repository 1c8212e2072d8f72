//! Replies in the words of a server.

use unslow_resp::write_header;

/// An error reply.
pub fn error(code: &str, text: &str) -> Vec<u8> {
    format!("-{code} {text}\r\n").into_bytes()
}

/// A bulk string.
pub fn bulk(out: &mut Vec<u8>, text: &[u8]) {
    write_header(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// A client's own word as it may stand in an error: a line.
pub fn printable(word: &[u8]) -> String {
    String::from_utf8_lossy(word).chars().filter(|c| !c.is_control()).collect()
}
