//! Every engine, in every shape, really ready and really gone.

use unslow_engine::{CATALOG, Deployment, ServerSpec, Shape, find};

fn alive(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// A test for each engine, so that they run side by side; the last one sees to it that the catalogue has no other.
macro_rules! on_every_engine {
    ($look:ident, $all:ident, $($test:ident: $engine:literal),+ $(,)?) => {
        $(#[test]
        fn $test() {
            $look($engine);
        })+

        #[test]
        fn $all() {
            assert_eq!(CATALOG.iter().map(|e| e.name).collect::<Vec<_>>(), [$($engine),+]);
        }
    };
}

fn runs_in_every_shape_and_leaves_nothing(name: &str) {
    let engine = find(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    for shape in [
        Shape::Standalone,
        Shape::MasterReplica { replicas: 1 },
        Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 },
        Shape::six_nodes(),
    ] {
        let deployment = Deployment::start(&engine, &shape, &ServerSpec::default())
            .unwrap_or_else(|e| panic!("{name} as {shape:?}: {e}"));
        let pids: Vec<u32> = deployment.nodes.iter().chain(&deployment.sentinels).map(|s| s.pid()).collect();
        let dirs: Vec<_> = deployment.nodes.iter().map(|s| s.dir().to_path_buf()).collect();
        assert!(pids.iter().all(|p| alive(*p)));
        for node in deployment.nodes.iter().filter(|_| matches!(shape, Shape::Cluster { .. })) {
            let mut connection = node.connect().unwrap();
            for (setting, own) in [("cluster-node-timeout", "15000"), ("cluster-slave-no-failover", "no")] {
                let now = connection.call(&["CONFIG", "GET", setting]).unwrap().get(setting).and_then(|v| v.text());
                assert_eq!(now.as_deref(), Some(own), "{name} {setting}: what hurries the start is gone");
            }
        }
        drop(deployment);
        assert!(pids.iter().all(|p| !alive(*p)), "a server outlived its guard");
        assert!(dirs.iter().all(|d| !d.exists()), "a directory outlived its guard");
    }
}

on_every_engine! {
    runs_in_every_shape_and_leaves_nothing, every_engine_of_the_catalogue_has_its_test,
    valkey_9_1_runs_in_every_shape_and_leaves_nothing: "valkey-9.1",
    redis_8_10_runs_in_every_shape_and_leaves_nothing: "redis-8.10",
    redis_7_0_runs_in_every_shape_and_leaves_nothing: "redis-7.0",
    redis_6_2_runs_in_every_shape_and_leaves_nothing: "redis-6.2",
    redis_5_0_runs_in_every_shape_and_leaves_nothing: "redis-5.0",
}

#[test]
fn a_server_that_dies_at_start_says_why() {
    let engine = find("valkey-9.1").unwrap();
    let spec = ServerSpec { settings: vec![("no-such-setting".into(), "1".into())], ..ServerSpec::default() };
    let error = Deployment::start(&engine, &Shape::Standalone, &spec).err().expect("should not start").to_string();
    assert!(error.contains("exited at startup"), "{error}");
}

#[test]
fn names_the_engines_there_are() {
    let error = find("redis-9").unwrap_err().to_string();
    assert!(error.contains("valkey-9.1"), "{error}");
    assert!(find("/bin/ls").unwrap_err().to_string().contains("expected redis-server or valkey-server"));
}
