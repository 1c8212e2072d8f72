//! Labs on real servers: what was asked is what is there, and nothing is left.

use unslow_client::Options;
use unslow_lab::lab::Lab;
use unslow_lab::topology::Topology;

#[test]
fn standard() {
    let lab = Lab::start(&Topology::standard()).unwrap_or_else(|e| panic!("{e}"));
    eprintln!("up in {:?}", lab.up);
    for (s, h) in lab.servers() {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", s.pid())).unwrap();
        eprintln!("{} {} {} {} {}", s.name(), s.address(), h.name, s.pid(), maps.contains("shim.control"));
    }
    let client = lab.client_in(0).unwrap();
    for (s, h) in lab.servers() {
        let mut c = lab.connect(client, s, &Options::default()).unwrap();
        let begun = std::time::Instant::now();
        for _ in 0..100 {
            c.call(&["PING"]).unwrap();
        }
        eprintln!("{} {:?}", h.name, begun.elapsed() / 100);
    }
    let begun = std::time::Instant::now();
    drop(lab);
    eprintln!("down in {:?}", begun.elapsed());
}
