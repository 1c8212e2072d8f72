//! Every engine, in every shape, really ready and really gone.

use unslow_engine::{CATALOG, Deployment, ServerSpec, Shape, find};

fn alive(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn every_engine_runs_in_every_shape_and_leaves_nothing() {
    for entry in CATALOG {
        let engine = find(entry.name).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
        for shape in [
            Shape::Standalone,
            Shape::MasterReplica { replicas: 1 },
            Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 },
            Shape::six_nodes(),
        ] {
            let begun = std::time::Instant::now();
            let deployment = Deployment::start(&engine, &shape, &ServerSpec::default())
                .unwrap_or_else(|e| panic!("{} as {shape:?}: {e}", entry.name));
            eprintln!("{} {shape:?}: ready in {:.1} s", entry.name, begun.elapsed().as_secs_f64());
            let pids: Vec<u32> = deployment.nodes.iter().chain(&deployment.sentinels).map(|s| s.pid()).collect();
            let dirs: Vec<_> = deployment.nodes.iter().map(|s| s.dir().to_path_buf()).collect();
            assert!(pids.iter().all(|p| alive(*p)));
            for node in deployment.nodes.iter().filter(|_| matches!(shape, Shape::Cluster { .. })) {
                let mut connection = node.connect().unwrap();
                for (name, own) in [("cluster-node-timeout", "15000"), ("cluster-slave-no-failover", "no")] {
                    let now = connection.call(&["CONFIG", "GET", name]).unwrap().get(name).and_then(|v| v.text());
                    assert_eq!(now.as_deref(), Some(own), "{} {name}: what hurries the start is gone", entry.name);
                }
            }
            drop(deployment);
            assert!(pids.iter().all(|p| !alive(*p)), "a server outlived its guard");
            assert!(dirs.iter().all(|d| !d.exists()), "a directory outlived its guard");
        }
    }
}

#[test]
fn a_server_that_dies_at_start_says_why() {
    let engine = find("valkey-9.1").unwrap();
    let spec = ServerSpec { settings: vec![("no-such-setting".into(), "1".into())], ..ServerSpec::default() };
    let error = Deployment::start(&engine, &Shape::Standalone, &spec).err().expect("should not start").to_string();
    assert!(error.contains("ended at start"), "{error}");
}

#[test]
fn names_the_engines_there_are() {
    let error = find("redis-9").unwrap_err().to_string();
    assert!(error.contains("valkey-9.1"), "{error}");
    assert!(find("/bin/ls").unwrap_err().to_string().contains("redis-server or valkey-server was expected"));
}
