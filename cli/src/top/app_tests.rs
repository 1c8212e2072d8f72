//! Keys and what they lead to, and every view as it is drawn.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unslow_facts::Facts;

use super::*;
use crate::top::draw::{Look, draw};

/// A cluster with clients that ask for its topology all the time, as it was recorded on real servers.
const RECORDED: &str = include_str!("../../../explain/doctor/tests/facts/topology_storm.json");

fn facts() -> Facts {
    static READ: std::sync::OnceLock<Facts> = std::sync::OnceLock::new();
    READ.get_or_init(|| Facts::from_json(RECORDED).unwrap()).clone()
}

fn frame_at(at_ms: u64) -> Frame {
    Frame::new(Facts { at_ms, ..facts() }, (Mood::Bad, "what the doctor says".into()))
}

fn app(view: View) -> App {
    let mut app = App::new("redis://127.0.0.1:7001", true, view);
    app.take(frame_at(1_000_000));
    app
}

fn press(app: &mut App, keys: &[KeyCode]) -> Wish {
    let mut wish = Wish::Nothing;
    for key in keys {
        wish = app.key(KeyEvent::new(*key, KeyModifiers::NONE));
    }
    wish
}

fn typed(app: &mut App, text: &str) {
    text.chars().for_each(|c| drop(press(app, &[KeyCode::Char(c)])));
}

fn screen(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app, Look { colours: false })).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = |y: u16| (0..width).map(move |x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| cells(y).trim_end().to_string() + "\n").collect()
}

/// The time of day is the machine's own.
fn without_time(screen: &str) -> String {
    let is_time = |text: &str| {
        let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        shape == "0000-00-00 00:00:00"
    };
    let mut out = String::new();
    let mut rest = screen;
    while let Some(c) = rest.chars().next() {
        let taken = rest.get(..19).filter(|text| is_time(text)).map_or(c.len_utf8(), str::len);
        out.push_str(if taken == 19 { "YYYY-MM-DD hh:mm:ss" } else { &rest[..taken] });
        rest = &rest[taken..];
    }
    out
}

/// UNSLOW_SNAPSHOTS=write puts what is drawn into the files; what changed is then read in the commit.
#[test]
fn every_view_is_drawn_as_kept_at_three_sizes() {
    let writes = std::env::var_os("UNSLOW_SNAPSHOTS").is_some();
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/snapshots");
    for view in View::ALL {
        let app = app(view);
        let sizes = [(80, 24), (130, 24), (40, 12)];
        let drawn: String = sizes.map(|(w, h)| format!("{w}x{h}\n{}\n", without_time(&screen(&app, w, h)))).concat();
        let file = dir.join(format!("{}.txt", view.name()));
        if writes {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(&file, &drawn).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(kept == drawn, "{} is drawn otherwise now:\n{drawn}", view.name());
    }
}

#[test]
fn enter_goes_from_a_server_to_its_commands_to_their_clients_and_esc_back() {
    let mut app = app(View::Nodes);
    let second = app.table().unwrap().rows[1].cells[0].text.clone();
    press(&mut app, &[KeyCode::Down, KeyCode::Enter]);
    assert_eq!((app.view, app.scope.node.as_deref()), (View::Commands, Some(&*second)));
    let command = app.table().unwrap().rows[0].cells[0].text.clone();
    press(&mut app, &[KeyCode::Enter]);
    assert_eq!((app.view, app.scope.command.as_deref()), (View::Clients, Some(&*command)));
    press(&mut app, &[KeyCode::Esc, KeyCode::Esc]);
    assert_eq!((app.view, app.scope.node.as_deref()), (View::Nodes, None));
    assert_eq!(app.row().unwrap().cells[0].text, second);
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(app.view, View::Nodes, "there is nothing further out");
}

#[test]
fn a_filter_is_typed_kept_and_left() {
    let mut app = app(View::Commands);
    let all = app.table().unwrap().rows.len();
    press(&mut app, &[KeyCode::Char('/')]);
    typed(&mut app, "CLUSTERq");
    press(&mut app, &[KeyCode::Backspace, KeyCode::Enter]);
    let some = app.table().unwrap().rows.len();
    assert!(some > 0 && some < all, "{some} of {all}");
    assert_eq!(press(&mut app, &[KeyCode::Char('/'), KeyCode::Char('q')]), Wish::Nothing, "q is a letter there");
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(app.table().unwrap().rows.len(), all);
}

#[test]
fn a_table_is_sorted_by_any_column_either_way() {
    let mut app = app(View::Nodes);
    let order = |app: &App| app.table().unwrap().rows.iter().map(|r| r.cells[0].text.clone()).collect::<Vec<_>>();
    // From ops/s to the role to the address.
    press(&mut app, &[KeyCode::Char('<'), KeyCode::Char('<')]);
    let by_address = order(&app);
    assert!(by_address.is_sorted() && app.message.as_deref().unwrap().contains("server"));
    press(&mut app, &[KeyCode::Char('r')]);
    assert!(order(&app).iter().eq(by_address.iter().rev()));
}

#[test]
fn what_is_paused_stays_while_new_frames_come_until_one_goes_on() {
    let mut app = app(View::Nodes);
    (2..=5).for_each(|n| app.take(frame_at(n * 1_000_000)));
    let shown = |app: &App| app.frame().unwrap().facts.at_ms / 1_000_000;
    press(&mut app, &[KeyCode::Char(' ')]);
    app.take(frame_at(6_000_000));
    assert_eq!((shown(&app), app.behind(), app.curve().count()), (5, 1, 5), "and the curve ends there");
    assert_eq!(press(&mut app, &[KeyCode::Left]), Wish::Step(-1));
    assert!(app.step(-2));
    app.take(frame_at(7_000_000));
    assert_eq!(shown(&app), 3);
    assert!(app.step(-100) && !app.step(-1), "the oldest one");
    assert_eq!(shown(&app), 1);
    press(&mut app, &[KeyCode::Char(' ')]);
    assert_eq!((shown(&app), app.paused), (7, false));
}

#[test]
fn what_is_paused_at_is_not_replaced_when_it_is_no_longer_kept() {
    let mut app = app(View::Nodes);
    press(&mut app, &[KeyCode::Char(' ')]);
    (0..1_000).for_each(|n| app.take(frame_at(2_000_000 + n)));
    assert_eq!(app.frame().unwrap().facts.at_ms, 1_000_000);
}

#[test]
fn the_cursor_stays_on_its_row_when_rows_change_places() {
    let mut app = app(View::Nodes);
    press(&mut app, &[KeyCode::Down]);
    let chosen = app.row().unwrap();
    press(&mut app, &[KeyCode::Char('r')]);
    assert_eq!(app.row().unwrap(), chosen);
    assert_ne!(app.cursor(&app.table().unwrap()), 1);
}

#[test]
fn a_command_leads_to_those_who_sent_it_and_not_to_what_is_called_alike() {
    let mut app = app(View::Commands);
    app.scope.command = Some("cluster|nodes".into());
    let of = |app: &App| View::Clients.of(&app.frame().unwrap().facts, &app.scope).rows.len();
    assert!(of(&app) > 0);
    app.scope.command = Some("cluster".into());
    assert_eq!(of(&app), 0);
}

#[test]
fn esc_with_a_key_right_behind_it_is_both() {
    let mut app = app(View::Nodes);
    press(&mut app, &[KeyCode::Enter]);
    app.key(KeyEvent::new(KeyCode::Char('5'), KeyModifiers::ALT));
    assert_eq!((app.view, app.scope.node.as_deref()), (View::Topology, None));
}

#[test]
fn a_stepped_back_view_that_reaches_the_newest_frame_is_live_again() {
    let mut app = app(View::Nodes);
    app.take(frame_at(2_000_000));
    assert!(app.step(-1) && app.paused);
    assert!(app.step(1) && !app.paused);
}

#[test]
fn frames_of_a_large_deployment_are_bounded() {
    let mut app = app(View::Nodes);
    let node = facts().nodes[0].clone();
    let nodes = (100..500).map(|port| Node { address: format!("10.0.0.1:{port}"), ..node.clone() });
    let large = Facts { nodes: nodes.collect(), ..facts() };
    let frame = |facts: &Facts| Frame::new(facts.clone(), (Mood::Well, String::new()));
    // As if each server had answered again: no INFO is shared with the frame before.
    let unshared = || {
        let mut facts = large.clone();
        for sample in facts.nodes.iter_mut().flat_map(|node| [&mut node.first, &mut node.last]).flatten() {
            sample.info = unslow_topology::Info(sample.info.0.clone().into_iter().collect());
        }
        frame(&facts)
    };
    (0..10).for_each(|_| app.take(unshared()));
    assert_eq!(app.frames.len(), 2);
    // What two frames share is there once.
    (0..1_000).for_each(|_| app.take(frame(&large)));
    assert_eq!(app.frames.len(), FRAMES);
    assert_eq!(app.added.iter().skip(1).sum::<usize>(), 0);
    assert!(app.added[0] > 0 && app.added[0] <= FRAME_BYTES, "{}", app.added[0]);
    app.take(unshared());
    assert!(app.added.iter().sum::<usize>() <= FRAME_BYTES || app.frames.len() == 2);
    assert_eq!(app.added.len(), app.frames.len());
}

#[test]
fn help_is_read_and_closed_by_a_key_that_does_nothing_else() {
    let mut app = app(View::Nodes);
    press(&mut app, &[KeyCode::Char('?'), KeyCode::Down, KeyCode::PageDown]);
    assert_eq!(app.popup.as_ref().unwrap().scroll, 1 + PAGE as usize);
    let text = app.popup.as_ref().unwrap().lines.join("\n");
    assert!(text.contains("ops/s") && text.contains("excluding unslow's own"), "{text}");
    assert_eq!(press(&mut app, &[KeyCode::Char('q')]), Wish::Nothing);
    assert_eq!((app.popup.is_none(), press(&mut app, &[KeyCode::Char('q')])), (true, Wish::Quit));
}

#[test]
fn ctrl_c_ends_it_wherever_one_is() {
    for keys in [&[][..], &[KeyCode::Char('/')], &[KeyCode::Char('t')], &[KeyCode::Char('?')]] {
        let mut app = app(View::Slow);
        press(&mut app, keys);
        let ctrl = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        assert_eq!((app.key(ctrl('z')), app.key(ctrl('c'))), (Wish::Suspend, Wish::Quit));
    }
}

#[test]
fn nothing_is_drawn_where_there_is_no_room_and_nothing_breaks() {
    for view in View::ALL {
        let mut app = app(view);
        for (width, height) in [(1, 1), (2, 3), (10, 6), (300, 2)] {
            screen(&app, width, height);
            press(&mut app, &[KeyCode::Char('?')]);
            screen(&app, width, height);
            press(&mut app, &[KeyCode::Esc, KeyCode::End]);
        }
    }
    screen(&App::new("redis://127.0.0.1:1", true, View::Nodes), 80, 24);
}
