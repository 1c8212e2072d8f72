//! Once everything is being ended nothing begins, and no directory comes back. Alone in its file: it ends the process's
//! servers for good.

use unslow_engine::{Server, ServerSpec, WorkDir, find, stop_all};

#[test]
fn nothing_is_made_behind_the_back_of_the_end() {
    let engine = find("valkey-9.1").unwrap();
    let base = tempfile::tempdir().unwrap();
    let lab = base.path().join("lab");
    let spec = ServerSpec { base: Some(lab.clone()), name: "a".into(), ..ServerSpec::default() };
    let before = WorkDir::make(|| Ok(tempfile::tempdir().unwrap())).unwrap();
    stop_all();
    assert!(!before.path().exists(), "what was made before goes");
    let late = Server::launch(&engine, &spec).err().map(|e| e.to_string());
    assert_eq!(late.as_deref(), Some("interrupted"));
    assert!(!lab.exists(), "its directory was made after the end");
    assert!(WorkDir::make(|| Ok(tempfile::tempdir().unwrap())).is_err());
}
