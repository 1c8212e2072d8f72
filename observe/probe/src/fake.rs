//! For tests alone: a server that answers each command by a function of its words.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use unslow_client::Target;

/// Listens for as long as the test's process lives. One command after the other is executed, whichever connection it
/// comes by; an empty answer closes the connection.
pub fn server(answer: impl FnMut(&[String]) -> String + Send + 'static) -> Target {
    let answer = Arc::new(Mutex::new(answer));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut writer: TcpStream = stream;
                while let Some(words) = command(&mut reader) {
                    let text = (answer.lock().unwrap())(&words);
                    if text.is_empty() || writer.write_all(text.as_bytes()).is_err() {
                        break;
                    }
                }
            });
        }
    });
    Target::parse(&format!("127.0.0.1:{port}")).unwrap()
}

/// A bulk string.
pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// `None` at the end of the connection.
fn command(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let words = number('*', reader)?;
    let mut all = Vec::with_capacity(words);
    for _ in 0..words {
        let mut bytes = vec![0; number('$', reader)? + 2];
        reader.read_exact(&mut bytes).ok()?;
        bytes.truncate(bytes.len() - 2);
        all.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    Some(all)
}

fn number(prefix: char, reader: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(prefix)?.parse().ok()
}
