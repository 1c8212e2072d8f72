//! Who clients are: users, databases, protocols, names.

use super::*;

#[test]
fn users_keep_their_rights_and_nobody_gets_anothers() {
    let server = server("valkey-9.1", &[("requirepass", "owner")]);
    let mut admin = server.connect().unwrap();
    admin.call(&["ACL", "SETUSER", "ann", "on", ">a", "~a:*", "+get", "+set", "+multi", "+exec", "+hello"]).unwrap();
    admin.call(&["ACL", "SETUSER", "bob", "on", ">b", "~b:*", "+get", "+set"]).unwrap();
    let gateway = gate(&server.url(), |config| {
        config.target = format!("redis://:owner@{}", server.address());
        config.client_auth = ClientAuth::Server;
    });
    let call = |s: &mut TcpStream, line: &str| {
        s.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        text(&frames(s, 1)[0])
    };
    let (mut ann, mut bob) = (raw(&gateway), raw(&gateway));
    assert!(call(&mut ann, "GET a:1").starts_with("-NOAUTH"));
    assert!(call(&mut ann, "UNSLOW SHOW STATS").starts_with("-NOAUTH"));
    assert!(call(&mut ann, "AUTH ann wrong").starts_with("-WRONGPASS"));
    assert!(call(&mut ann, "GET a:1").starts_with("-NOAUTH"));
    assert_eq!(call(&mut ann, "AUTH ann a"), "+OK\\r\\n");
    assert!(call(&mut bob, "HELLO 3 AUTH bob b").starts_with("%7"));
    for _ in 0..20 {
        assert_eq!(call(&mut ann, "SET a:1 x"), "+OK\\r\\n");
        assert!(call(&mut ann, "SET b:1 x").starts_with("-NOPERM"));
        assert_eq!(call(&mut bob, "SET b:1 x"), "+OK\\r\\n");
        assert!(call(&mut bob, "GET a:1").starts_with("-NOPERM"));
    }
    ann.write_all(b"MULTI\r\nSET a:1 y\r\nEXEC\r\n").unwrap();
    assert_eq!(text(&frames(&mut ann, 3)[2]), "*1\\r\\n+OK\\r\\n");
    assert!(call(&mut ann, "AUTH ann wrong").starts_with("-WRONGPASS"));
    assert_eq!(call(&mut ann, "GET a:1"), "$1\\r\\ny\\r\\n", "a wrong password changes nothing");
    assert_eq!(call(&mut ann, "RESET"), "+RESET\\r\\n");
    assert!(call(&mut ann, "GET a:1").starts_with("-NOAUTH"));
    let shown = {
        let mut c = raw(&gateway);
        call(&mut c, "AUTH owner");
        call(&mut c, "UNSLOW SHOW CONFIG")
    };
    assert!(shown.contains("hold_ms") && !shown.contains("owner"), "{shown}");
}

#[test]
fn databases_protocols_and_names_belong_to_each_client() {
    let server = standalone("redis-7.0");
    let gateway = gate(&server.url(), |_| {});
    let (mut a, mut b) = (client(&gateway), client(&gateway));
    a.call(&["SELECT", "3"]).unwrap();
    a.call(&["SET", "k", "three"]).unwrap();
    assert_eq!(b.call(&["GET", "k"]).unwrap(), Value::Null);
    assert!(a.call(&["SELECT", "99"]).is_err());
    assert_eq!(a.call(&["GET", "k"]).unwrap().text().as_deref(), Some("three"));
    a.call(&["CLIENT", "SETNAME", "worker-1"]).unwrap();
    assert_eq!(a.call(&["CLIENT", "GETNAME"]).unwrap().text().as_deref(), Some("worker-1"));
    assert_eq!(b.call(&["CLIENT", "GETNAME"]).unwrap(), Value::Null);
    let list = b.call(&["CLIENT", "LIST"]).unwrap().text().unwrap();
    assert!(list.contains("name=worker-1") && list.lines().count() == 2, "{list}");
    let mut three = Connection::open(&target(&gateway), &options(3)).unwrap();
    three.call(&["HSET", "h", "f", "v"]).unwrap();
    let mut stream = raw(&gateway);
    stream.write_all(b"HGETALL h\r\nHELLO 3\r\nHGETALL h\r\nHELLO 4\r\n").unwrap();
    let all = frames(&mut stream, 4);
    assert!(all[0].starts_with(b"*2") && all[1].starts_with(b"%7") && all[2].starts_with(b"%1"), "{}", text(&all[2]));
    assert!(all[3].starts_with(b"-NOPROTO"));
    stream
        .write_all(
            b"CLIENT REPLY OFF\r\nSET x 1\r\nGET x\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nGET x\r\nGET x\r\n",
        )
        .unwrap();
    let all = frames(&mut stream, 2);
    assert_eq!((text(&all[0]), text(&all[1])), ("+OK\\r\\n".into(), "$1\\r\\n1\\r\\n".into()));
    // Tracking has its own connection, and invalidations come between answers.
    stream.write_all(b"CLIENT TRACKING ON\r\nGET x\r\n").unwrap();
    frames(&mut stream, 2);
    b.call(&["SET", "x", "2"]).unwrap();
    let push = text(&frames(&mut stream, 1)[0]);
    assert!(push.starts_with(">2") && push.contains("invalidate"), "{push}");
    // MONITOR sees what goes through, among the watcher's own questions.
    let (mut monitor, mut rest) = (raw(&gateway), Vec::new());
    monitor.write_all(b"MONITOR\r\n").unwrap();
    assert_eq!(next_frame(&mut monitor, &mut rest), "+OK\\r\\n");
    b.call(&["SET", "seen", "1"]).unwrap();
    until("MONITOR to show the command", || next_frame(&mut monitor, &mut rest).contains("seen"));
}
