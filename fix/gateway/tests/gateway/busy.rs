//! A server that is busy with a script: what shares the script's connection hears so as on a connection of its own.

use super::*;

#[test]
fn while_a_script_runs_too_long_others_hear_so_at_once_until_script_kill_ends_it() {
    // The second is silent for so long that it is suspected before it says that it is busy.
    for (name, threshold) in [("valkey-9.1", "200"), ("redis-6.2", "1000")] {
        let server = server(name, &[("lua-time-limit", threshold)]);
        let gateway = gate(&server.url(), |_| {});
        let (mut other, mut runs) = (client(&gateway), raw(&gateway));
        other.call(&["SET", "k", "v"]).unwrap();
        let mut script = Vec::new();
        write_command(&mut script, &["EVAL", "while true do end", "1", "k"]);
        write_command(&mut script, &["GET", "k"]);
        runs.write_all(&script).unwrap();
        let busy = |c: &mut Connection, words: &[&str]| c.call(words).is_err_and(|e| e.to_string().contains("BUSY"));
        // PING is the gateway's own answer until the server is known to be busy, so it never waits.
        until("the gateway to notice", || busy(&mut other, &["PING"]));
        for words in [&["GET", "k"][..], &["SET", "k", "w"], &["MGET", "k", "l"], &["EVAL", "return 1", "1", "k"]] {
            assert!(busy(&mut other, words), "{name}: {words:?}");
        }
        let long = "x".repeat(300_000);
        assert!(busy(&mut other, &["SET", "long", &long]), "{name}: a long value");
        other.call(&["MULTI"]).unwrap();
        assert!(busy(&mut other, &["SET", "k", "w"]), "{name}: within MULTI");
        let aborted = other.call(&["EXEC"]).unwrap_err().to_string();
        assert!(aborted.contains("EXECABORT"), "{name}: {aborted}");
        assert_eq!(other.call(&["SCRIPT", "KILL"]).unwrap().text().as_deref(), Some("OK"), "{name}");
        // What the script's own client said next came next.
        let answers = frames(&mut runs, 2);
        assert!(answers[0].starts_with(b"-"), "{name}: {}", text(&answers[0]));
        assert_eq!(text(&answers[1]), "$1\\r\\nv\\r\\n", "{name}");
        for _ in 0..20 {
            assert_eq!(other.call(&["GET", "k"]).unwrap().text().as_deref(), Some("v"), "{name}");
            assert_eq!(other.call(&["PING"]).unwrap().text().as_deref(), Some("PONG"), "{name}");
        }
        assert_eq!(other.call(&["SET", "k", "w"]).unwrap().text().as_deref(), Some("OK"), "{name}");
    }
}
