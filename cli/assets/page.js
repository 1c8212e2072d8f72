// The page of a recording: which range is shown, its incidents in lanes, its curves, and what the doctor says of it.
'use strict';

const $ = (id) => document.getElementById(id);
// uPlot's left axis and right padding: lanes stand over the same times.
const LEFT = 64;
const RIGHT = 16;
const HEIGHT = 150;
const MINUTE = 60_000;
const SHORTEST = 3_000;
// Incidents are asked for again while minutes are still being diagnosed.
const AGAIN = 2_000;

// What is shown. `length` is the range a person wants, which the recording may not have yet.
const shown = { url: null, from: 0, to: 0, length: 60 * MINUTE, live: true };
let recording = null;
let plots = [];
let drawn = null; // the newest answer, to be drawn again at another width or in other colours
let window_ms = MINUTE; // what incidents are made of
let asking = null; // the answers that are under way; a person's next range ends them
let rest_until = 0; // a live view asks no more often than the answers take
let polling = 0;
let listed = ''; // the incidents in the list
let events = null;
let dragging = false;
let opener = null; // where the keyboard was when the diagnosis was opened

// Without the user and password that may stand in the address of the page.
const here = (path, parameters) => location.origin + path + (parameters ? '?' + new URLSearchParams(parameters) : '');
const get = async (path, parameters, signal) => {
  const answer = await fetch(here(path, parameters), { signal });
  const text = await answer.text();
  if (!answer.ok) {
    let words = text;
    try { words = JSON.parse(text).error; } catch { /* as it is */ }
    throw new Error(words || answer.statusText);
  }
  return text;
};
const range = () => ({ url: shown.url, from: Math.round(shown.from), to: Math.round(shown.to) });
const clock = (ms) => new Date(ms).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium', hourCycle: 'h23' });
const lasted = (ms) => {
  const s = Math.round(ms / 1000);
  if (s < 120) return s + ' s';
  if (s < 7200) return Math.round(s / 60) + ' min';
  return s < 172_800 ? Math.round(s / 3600) + ' h' : Math.round(s / 86_400) + ' days';
};
const make = (name, words, classes) => {
  const element = document.createElement(name);
  if (words !== undefined) element.textContent = words;
  if (classes) element.className = classes;
  return element;
};

// Values as people read them.
const round = (v) => (v === 0 ? '0' : Math.abs(v) >= 100 ? Math.round(v).toLocaleString('en') : String(+v.toPrecision(3)));
const units = {
  us: (v) => (v >= 1e6 ? round(v / 1e6) + ' s' : v >= 1e3 ? round(v / 1e3) + ' ms' : round(v) + ' us'),
  bytes: (v) => (v >= 1e9 ? round(v / 1e9) + ' GB' : v >= 1e6 ? round(v / 1e6) + ' MB' : v >= 1e3 ? round(v / 1e3) + ' kB' : round(v) + ' B'),
  percent: (v) => round(v) + ' %',
  count: (v) => (v >= 1e6 ? round(v / 1e6) + ' M' : round(v)),
};

// Times along the bottom, on a clock of 24 hours: the step in seconds from which a form is used, the form, and what is
// added where the minute, the day or the year is another than before.
const DAY = 86_400;
const times = [
  [DAY * 365, '{YYYY}', null, null, null, null, null, null, 1],
  [DAY * 28, '{MMM}', '\n{YYYY}', null, null, null, null, null, 1],
  [DAY, '{D} {MMM}', '\n{YYYY}', null, null, null, null, null, 1],
  [60, '{HH}:{mm}', '\n{D} {MMM} {YYYY}', null, '\n{D} {MMM}', null, null, null, 1],
  [1, '{HH}:{mm}:{ss}', '\n{D} {MMM} {YYYY}', null, '\n{D} {MMM}', null, null, null, 1],
];

// The frame's palette. On paper it is the light one, whatever the screen has.
let onPaper = false;
const colour = (name) => {
  const light = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).find((rule) => rule.selectorText === ':root');
  const value = onPaper && light ? light.style.getPropertyValue(name) : getComputedStyle(document.documentElement).getPropertyValue(name);
  return value.trim();
};

// --- the range

const show = (from, to, live, byPerson = true) => {
  if (byPerson) shown.length = Math.max(to - from, SHORTEST);
  const end = recording.to_ms + 1;
  shown.live = live;
  // After the clock was set back the newest is not the last.
  shown.to = live ? recording.newest_ms + 1 : Math.min(to, end);
  shown.from = Math.max(shown.to - shown.length, Math.min(recording.from_ms, shown.to - SHORTEST));
  if (!live) shown.to = Math.min(Math.max(shown.to, shown.from + shown.length), end);
  const query = new URLSearchParams(live ? { url: shown.url, last: Math.round(shown.length) } : range());
  history.replaceState(null, '', '?' + query);
  const words = clock(shown.from) + ' to ' + clock(shown.to) + ' (' + lasted(shown.to - shown.from) + ')';
  $('range').textContent = words;
  if (byPerson) $('told').textContent = words;
  $('follow').setAttribute('aria-pressed', String(live));
  const minutes = String(Math.round(shown.length / MINUTE));
  for (const button of document.querySelectorAll('[data-minutes]')) button.setAttribute('aria-pressed', String(button.dataset.minutes === minutes));
  listen();
  refresh(byPerson);
};

const move = (by) => {
  const length = shown.to - shown.from;
  show(shown.from + by * length, shown.to + by * length, false);
};
const zoom = (by) => {
  const [middle, half] = [(shown.from + shown.to) / 2, Math.max(((shown.to - shown.from) / 2) * by, SHORTEST / 2)];
  show(middle - half, middle + half, false);
};
const last = (ms) => show(shown.to - ms, shown.to, shown.live);
const follow = () => (shown.live ? show(shown.from, shown.to, false) : show(recording.newest_ms + 1 - shown.length, recording.newest_ms + 1, true));

// --- what is shown

// One set of answers at a time: a live view waits for the last one, a person does not.
const refresh = async (byPerson) => {
  if (!byPerson && (asking || performance.now() < rest_until)) return;
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  const begun = performance.now();
  const part = (where, work) => work().catch((e) => {
    if (mine.signal.aborted) return;
    if (where === 'curves') clear();
    $(where).textContent = e.message;
  });
  const buckets = Math.max(60, Math.min(1000, Math.round($('curves').clientWidth / 1.5)));
  const wanted = range();
  await Promise.all([
    part('missing', () => incidents(mine.signal)),
    part('curves', async () => {
      const answer = JSON.parse(await get('/curves', { ...wanted, buckets }, mine.signal));
      if (!mine.signal.aborted) { drawn = answer; draw(); }
    }).then(() => part('nodes', async () => {
      const html = await get('/nodes', wanted, mine.signal);
      if (!mine.signal.aborted) $('nodes').innerHTML = html;
    })),
  ]);
  if (asking !== mine) return;
  asking = null;
  rest_until = performance.now() + 3 * (performance.now() - begun);
};
const clear = () => {
  for (const plot of plots) plot.destroy();
  [plots, drawn] = [[], null];
};

const windows = (n) => n + (window_ms === MINUTE ? (n === 1 ? ' whole minute' : ' whole minutes') : ' windows of ' + window_ms / 1000 + ' s');
const incidents = async (signal) => {
  clearTimeout(polling);
  // Also after a failure: it may be a passing one.
  const again = () => { clearTimeout(polling); polling = setTimeout(() => incidents(signal).catch(() => {}), AGAIN); };
  let told;
  try {
    told = JSON.parse(await get('/incidents', range(), signal));
  } catch (e) {
    if (!signal.aborted) again();
    throw e;
  }
  if (signal.aborted) return;
  window_ms = told.window_ms;
  const said = [];
  if (!told.windows) said.push('Whole ' + (window_ms === MINUTE ? 'minutes' : 'windows of ' + window_ms / 1000 + ' s') + ' are diagnosed; this range has none yet.');
  else if (told.missing) said.push(told.windows - told.missing + ' of ' + windows(told.windows) + ' diagnosed, the newest first …');
  else if (!told.incidents.length && told.unseen < told.windows) said.push((told.unsettled ? 'None so far in ' : 'None in ') + windows(told.windows - told.unseen) + '.');
  if (told.unseen) said.push('Nothing was recorded in ' + windows(told.unseen) + '.');
  if (told.windows && told.from_ms > shown.from + window_ms) said.push('Only the time from ' + clock(told.from_ms) + ' on is diagnosed: zoom in for the rest.');
  $('missing').textContent = said.join(' ');
  lanes(told.incidents);
  list(told.incidents);
  if (told.missing) again();
};

const select = (incident) => {
  // With something before and after it.
  const around = Math.max((incident.to_ms - incident.from_ms) / 2, MINUTE);
  show(incident.from_ms - around, incident.to_ms + around, false);
  diagnose(incident.worst_ms, incident.worst_ms + window_ms);
};
const named = (incident) => incident.title + ', ' + clock(incident.from_ms) + ', ' + lasted(incident.to_ms - incident.from_ms);

const lanes = (all) => {
  const place = (ms) => Math.max(0, Math.min(1, (ms - shown.from) / (shown.to - shown.from))) * 100;
  const rules = new Map();
  for (const incident of all) rules.set(incident.rule, [...(rules.get(incident.rule) || []), incident]);
  // A view that follows is drawn every second: a bar that stays is the same element, or a click that begins on one and
  // ends on the next would be none, and the keyboard would lose its place.
  const before = new Map([...$('lanes').children].map((lane) => [lane.firstChild.textContent, lane]));
  arrange($('lanes'), [...rules].map(([rule, list]) => {
    const lane = before.get(rule) || make('div', undefined, 'lane');
    if (!before.has(rule)) lane.append(make('span', rule, 'name mono'), make('div', undefined, 'track'));
    const bars = [...lane.lastChild.children];
    arrange(lane.lastChild, list.map((incident) => {
      // It may have got longer at either end; two servers of one lane are two incidents.
      const same = bars.findIndex(({ shows }) => shows.title === incident.title && shows.from_ms <= incident.to_ms && shows.to_ms >= incident.from_ms);
      const bar = same < 0 ? make('button') : bars.splice(same, 1)[0];
      bar.shows = incident;
      bar.className = incident.is_bad ? 'bad' : '';
      bar.type = 'button';
      bar.title = named(incident);
      bar.setAttribute('aria-label', named(incident));
      bar.style.left = place(incident.from_ms) + '%';
      bar.style.width = place(incident.to_ms) - place(incident.from_ms) + '%';
      bar.onclick = () => select(incident);
      return bar;
    }));
    return lane;
  }));
};
// These children in this order; one that is in its place is not touched.
const arrange = (parent, children) => {
  for (const child of [...parent.children]) if (!children.includes(child)) child.remove();
  children.forEach((child, at) => { if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] || null); });
};

const list = (all) => {
  // A list that is the same stays, and with it the place of the keyboard.
  if (JSON.stringify(all) === listed) return;
  listed = JSON.stringify(all);
  $('incidents').hidden = !all.length;
  $('incidents').tBodies[0].replaceChildren(...all.map((incident) => {
    const row = make('tr');
    const what = make('td');
    const open = make('button', incident.title);
    open.type = 'button';
    open.addEventListener('click', () => select(incident));
    what.append(open, ' ', make('code', incident.rule), ...incident.chain.map((link) => make('div', '→ ' + link, 'soft')));
    row.append(make('td', clock(incident.from_ms)), make('td', incident.lasts ? 'still going on' : lasted(incident.to_ms - incident.from_ms)), what, make('td', incident.impact));
    return row;
  }));
};

// A line at zero is worth a word, not a plot.
const drawn_at_all = (v) => v !== null && v !== 0;

const alike = () => drawn.figures.map((f) => f.id + f.lines.map((l) => l.name + (l.values.some(drawn_at_all) ? '+' : '')).join(',')).join(';') + onPaper + matchMedia('(prefers-color-scheme: dark)').matches;
let likeness = '';
const draw = () => {
  if (!drawn || dragging) return;
  if (!drawn.figures.some((figure) => figure.lines.some((l) => l.values.some((v) => v !== null)))) {
    for (const plot of plots) plot.destroy();
    plots = [];
    $('curves').replaceChildren(make('p', 'Nothing was recorded then.', 'soft'));
    return;
  }
  if (plots.length && likeness === alike()) {
    // The same lines, later: their plots stay.
    for (const plot of plots) {
      plot.figure = drawn.figures.find((f) => f.id === plot.figure.id);
      plot.setData([drawn.at_s, ...plot.figure.lines.map((l) => l.values)]);
      plot.label();
    }
    return;
  }
  likeness = alike();
  for (const plot of plots) plot.destroy();
  const [soft, line] = ['--soft', '--line'].map(colour);
  const colours = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => colour('--s' + n));
  const sync = uPlot.sync('unslow');
  const has = (test) => (figure) => figure.lines.some((l) => l.values.some(test));
  const figures = drawn.figures.filter(has(drawn_at_all));
  const names = (figure) => figure.lines.map((l) => l.name).join(' ');
  const legends = new Set(figures.map(names)).size > 1 ? figures : figures.slice(0, 1);
  plots = [];
  $('curves').replaceChildren(...figures.map((figure) => {
    const say = units[figure.unit];
    const box = make('div', undefined, 'curve');
    const title = make('h3', figure.title);
    const reading = make('span', '', 'soft mono');
    title.append(' ', reading);
    const legend = make('ul', undefined, 'legend');
    figure.lines.forEach((l, i) => {
      const item = make('li');
      item.append(make('span', undefined, 'key s' + ((i % 8) + 1)), l.name);
      legend.append(item);
    });
    const canvas = make('div');
    canvas.setAttribute('role', 'img');
    const label = () => {
      const peak = plot.figure.lines.map((l) => [Math.max(...l.values.filter((v) => v !== null)), l.name]).reduce((a, b) => (b[0] > a[0] ? b : a));
      canvas.setAttribute('aria-label', figure.title + ' over time; the highest is ' + say(peak[0]) + ', of ' + peak[1]);
    };
    box.append(title, canvas);
    if (figure.lines.length > 1 && legends.includes(figure)) box.append(legend);
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const plot = new uPlot({
      width: Math.max($('curves').clientWidth, 260), height: HEIGHT, padding: [8, RIGHT, 0, 0],
      cursor: { sync: { key: sync.key }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      legend: { show: false },
      scales: { x: { time: true, range: () => [shown.from / 1000, shown.to / 1000] }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      axes: [{ ...axis, values: times, space: 70 }, { ...axis, size: LEFT, values: (u, values) => values.map(say) }],
      series: [{}, ...figure.lines.map((l, i) => ({ label: l.name, stroke: colours[i % 8], width: 1.6, spanGaps: false, points: { show: drawn.at_s.length < 3 } }))],
      hooks: {
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          const [from, to] = [u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x')];
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          show(from * 1000, Math.max(to * 1000, from * 1000 + SHORTEST), false);
        }],
        setCursor: [(u) => {
          const at = u.cursor.idx;
          const values = at === null || at === undefined ? [] : u.figure.lines.map((l) => l.values[at]).filter((v) => v !== null && v !== undefined);
          reading.textContent = values.length ? new Date(drawn.at_s[at] * 1000).toLocaleTimeString(undefined, { hourCycle: 'h23' }) + ': ' + say(Math.max(...values)) : '';
        }],
      },
    }, [drawn.at_s, ...figure.lines.map((l) => l.values)], canvas);
    Object.assign(plot, { figure, label });
    label();
    plots.push(plot);
    return box;
  }));
  const none = drawn.figures.filter((figure) => !figures.includes(figure) && has((v) => v !== null)(figure));
  if (none.length) $('curves').append(make('p', 'Zero all the time: ' + none.map((figure) => figure.title).join(', ') + '.', 'soft'));
  // Made before they were in the page.
  for (const plot of plots) plot.setSize({ width: Math.max($('curves').clientWidth, 260), height: HEIGHT });
};

// --- the diagnosis

const diagnose = (from = shown.from, to = shown.to) => {
  const query = '/diagnosis?' + new URLSearchParams({ url: shown.url, from: Math.round(from), to: Math.round(to) });
  if ($('said').hidden) opener = document.activeElement;
  $('said').hidden = false;
  $('both').classList.add('beside');
  $('said-range').textContent = clock(from) + ' to ' + clock(to);
  $('said-link').href = query;
  $('said-page').src = query;
  resize();
  $('said-close').focus({ preventScroll: true });
};
const close = () => {
  if ($('said').hidden) return;
  $('said').hidden = true;
  $('both').classList.remove('beside');
  resize();
  if (opener && opener.isConnected) opener.focus({ preventScroll: true });
};

const resize = () => { for (const plot of plots) plot.setSize({ width: Math.max($('curves').clientWidth, 260), height: HEIGHT }); };

// --- begin

// A connection is held by the tab that is looked at, and only while it is live: a browser has few for one host.
const listen = () => {
  const wanted = shown.live && !document.hidden;
  if (wanted === Boolean(events)) return;
  if (!wanted) {
    events.close();
    events = null;
    return;
  }
  events = new EventSource(here('/live'));
  events.addEventListener('recorded', (event) => {
    const now = JSON.parse(event.data);
    if (!now.deployments.length) return;
    recording = now;
    offer();
    if (shown.live && !dragging) show(shown.from, shown.to, true, false);
  });
};

// The deployments that can be chosen; one may be added while the page is open.
const offer = () => {
  const words = (d) => d.url + ' (' + d.servers + (d.servers === 1 ? ' server)' : ' servers)');
  const known = [...$('deployment').options].map((option) => option.textContent);
  if (known.join('\n') === recording.deployments.map(words).join('\n')) return;
  $('deployment').replaceChildren(...recording.deployments.map((d) => {
    const option = make('option', words(d));
    option.value = d.url;
    return option;
  }));
  if (shown.url) $('deployment').value = shown.url;
};

const begin = async () => {
  try {
    recording = JSON.parse(await get('/recording'));
    if (!recording.deployments.length) throw new Error('nothing is recorded yet');
  } catch (e) {
    $('range').textContent = e.message + ' - trying again';
    setTimeout(begin, AGAIN);
    return;
  }
  const query = new URLSearchParams(location.search);
  offer();
  shown.url = recording.deployments.some((d) => d.url === query.get('url')) ? query.get('url') : recording.deployments[0] && recording.deployments[0].url;
  $('deployment').value = shown.url;
  const [from, to] = ['from', 'to'].map((name) => Number(query.get(name)));
  const length = Number(query.get('last')) > 0 ? Number(query.get('last')) : 60 * MINUTE;
  if (from && to > from) show(from, to, false);
  else show(recording.newest_ms + 1 - length, recording.newest_ms + 1, true);
};

$('deployment').addEventListener('change', (event) => { shown.url = event.target.value; close(); clear(); show(shown.to - shown.length, shown.to, shown.live); });
$('earlier').addEventListener('click', () => move(-0.5));
$('later').addEventListener('click', () => move(0.5));
$('in').addEventListener('click', () => zoom(0.5));
$('out').addEventListener('click', () => zoom(2));
$('follow').addEventListener('click', follow);
$('diagnose').addEventListener('click', () => diagnose());
$('said-close').addEventListener('click', close);
for (const button of document.querySelectorAll('[data-minutes]')) button.addEventListener('click', () => last(button.dataset.minutes * MINUTE));
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ['SELECT', 'INPUT'].includes(event.target.tagName)) return;
  // A table that is wider than the page is scrolled by them.
  if (event.key.startsWith('Arrow') && event.target.closest('.wide')) return;
  const act = { ArrowLeft: () => move(-0.5), ArrowRight: () => move(0.5), '+': () => zoom(0.5), '-': () => zoom(2), l: follow, d: () => diagnose(), escape: close }[event.key.length > 1 && event.key.startsWith('Arrow') ? event.key : event.key.toLowerCase()];
  if (act && recording) { event.preventDefault(); act(); }
});
let waiting = 0;
addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(resize, 100); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
document.addEventListener('visibilitychange', () => { if (recording) listen(); });
$('curves').addEventListener('pointerdown', () => { dragging = true; });
addEventListener('pointerup', () => { dragging = false; });
addEventListener('pointercancel', () => { dragging = false; });
// Keys go to the report while it is read.
$('said-page').addEventListener('load', () => { const page = $('said-page').contentDocument; if (page) page.addEventListener('keydown', (event) => { if (event.key === 'Escape') close(); }); });
addEventListener('beforeprint', () => { onPaper = true; draw(); });
addEventListener('afterprint', () => { onPaper = false; draw(); });
begin();
