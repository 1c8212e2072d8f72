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

const shown = { url: null, from: 0, to: 0, live: true };
let recording = null;
let plots = [];
let drawn = null; // the newest answer, to be drawn again at another width or in other colours
let window_ms = MINUTE; // what incidents are made of
let asked = 0; // answers to an earlier range are thrown away
let events = null;

const get = async (path, parameters) => {
  const answer = await fetch(path + (parameters ? '?' + new URLSearchParams(parameters) : ''));
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

const bound = () => {
  const length = Math.max(shown.to - shown.from, SHORTEST);
  if (shown.to > recording.to_ms) shown.to = recording.to_ms + 1;
  shown.from = Math.max(shown.to - length, recording.from_ms);
  shown.to = Math.max(shown.to, Math.min(shown.from + length, recording.to_ms + 1));
};

const show = (from, to, live) => {
  Object.assign(shown, { from, to, live });
  bound();
  const query = new URLSearchParams(shown.live ? { url: shown.url, last: Math.round(shown.to - shown.from) } : range());
  history.replaceState(null, '', '?' + query);
  $('range').textContent = clock(shown.from) + ' to ' + clock(shown.to) + ' (' + lasted(shown.to - shown.from) + ')';
  $('follow').setAttribute('aria-pressed', String(shown.live));
  const minutes = String(Math.round((shown.to - shown.from) / MINUTE));
  for (const button of document.querySelectorAll('[data-minutes]')) button.setAttribute('aria-pressed', String(button.dataset.minutes === minutes));
  refresh();
};

const move = (by) => {
  const length = shown.to - shown.from;
  show(shown.from + by * length, shown.to + by * length, false);
};
const zoom = (by) => {
  const [middle, half] = [(shown.from + shown.to) / 2, Math.max(((shown.to - shown.from) / 2) * by, SHORTEST / 2)];
  show(middle - half, middle + half, false);
};
const last = (ms) => {
  const to = shown.live ? recording.to_ms + 1 : shown.to;
  show(to - ms, to, shown.live);
};
const follow = () => {
  const length = shown.to - shown.from;
  if (shown.live) show(shown.from, shown.to, false);
  else show(recording.to_ms + 1 - length, recording.to_ms + 1, true);
};

// --- what is shown

const refresh = () => {
  const mine = ++asked;
  const current = () => mine === asked;
  const failed = (where) => (e) => { if (current()) $(where).textContent = e.message; };
  incidents(current).catch(failed('missing'));
  const buckets = Math.max(60, Math.min(1000, Math.round($('curves').clientWidth / 1.5)));
  get('/curves', { ...range(), buckets })
    .then((text) => { if (current()) { drawn = JSON.parse(text); draw(); } })
    .then(() => get('/nodes', range()))
    .then((html) => { if (current()) $('nodes').innerHTML = html; })
    .catch(failed('nodes'));
};

const incidents = async (current) => {
  const told = JSON.parse(await get('/incidents', range()));
  if (!current()) return;
  window_ms = told.window_ms;
  const words = !told.windows ? 'Whole minutes are diagnosed; this range has none yet.'
    : told.missing ? told.windows - told.missing + ' of ' + told.windows + ' minutes diagnosed, the newest first …'
    : told.incidents.length ? '' : 'None in ' + (told.windows === 1 ? 'the one whole minute' : 'the ' + told.windows + ' whole minutes') + ' of this range.';
  if ($('missing').textContent !== words) $('missing').textContent = words;
  lanes(told.incidents);
  list(told.incidents);
  if (told.missing) setTimeout(() => { if (current()) incidents(current).catch(() => {}); }, AGAIN);
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
  const focused = document.activeElement && document.activeElement.dataset.key;
  $('lanes').replaceChildren(...[...rules].map(([rule, list]) => {
    const lane = make('div', undefined, 'lane');
    lane.append(make('span', rule, 'name mono'));
    const track = make('div', undefined, 'track');
    for (const incident of list) {
      const bar = make('button', undefined, incident.is_bad ? 'bad' : '');
      bar.type = 'button';
      bar.title = named(incident);
      bar.dataset.key = rule + incident.from_ms;
      bar.setAttribute('aria-label', named(incident));
      bar.style.left = place(incident.from_ms) + '%';
      bar.style.width = place(incident.to_ms) - place(incident.from_ms) + '%';
      bar.addEventListener('click', () => select(incident));
      track.append(bar);
    }
    lane.append(track);
    return lane;
  }));
  if (focused) for (const bar of document.querySelectorAll('.lane button')) if (bar.dataset.key === focused) bar.focus();
};

const list = (all) => {
  $('incidents').hidden = !all.length;
  $('incidents').tBodies[0].replaceChildren(...all.map((incident) => {
    const row = make('tr', undefined, '');
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

const draw = () => {
  if (!drawn) return;
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
    const peak = figure.lines.map((l) => [Math.max(...l.values.filter((v) => v !== null)), l.name]).reduce((a, b) => (b[0] > a[0] ? b : a));
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
    canvas.setAttribute('aria-label', figure.title + ' over time; the highest is ' + say(peak[0]) + ', of ' + peak[1]);
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
          const values = at === null || at === undefined ? [] : figure.lines.map((l) => l.values[at]).filter((v) => v !== null && v !== undefined);
          reading.textContent = values.length ? new Date(drawn.at_s[at] * 1000).toLocaleTimeString(undefined, { hourCycle: 'h23' }) + ': ' + say(Math.max(...values)) : '';
        }],
      },
    }, [drawn.at_s, ...figure.lines.map((l) => l.values)], canvas);
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
  $('said').hidden = false;
  $('both').classList.add('beside');
  $('said-range').textContent = clock(from) + ' to ' + clock(to);
  $('said-link').href = query;
  $('said-page').src = query;
  resize();
};
const close = () => {
  $('said').hidden = true;
  $('both').classList.remove('beside');
  resize();
};

const resize = () => { for (const plot of plots) plot.setSize({ width: Math.max($('curves').clientWidth, 260), height: HEIGHT }); };

// --- begin

const listen = () => {
  events = new EventSource('/live');
  events.addEventListener('recorded', (event) => {
    recording.to_ms = JSON.parse(event.data).to_ms;
    if (shown.live && !document.hidden) {
      const length = shown.to - shown.from;
      show(recording.to_ms + 1 - length, recording.to_ms + 1, true);
    }
  });
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
  $('deployment').replaceChildren(...recording.deployments.map((d) => {
    const option = make('option', d.url + ' (' + d.servers + (d.servers === 1 ? ' server)' : ' servers)'));
    option.value = d.url;
    return option;
  }));
  shown.url = recording.deployments.some((d) => d.url === query.get('url')) ? query.get('url') : recording.deployments[0] && recording.deployments[0].url;
  $('deployment').value = shown.url;
  const [from, to] = ['from', 'to'].map((name) => Number(query.get(name)));
  const length = Number(query.get('last')) || 60 * MINUTE;
  if (from && to > from) show(from, to, false);
  else show(recording.to_ms + 1 - length, recording.to_ms + 1, true);
  listen();
};

$('deployment').addEventListener('change', (event) => { shown.url = event.target.value; close(); show(shown.from, shown.to, shown.live); });
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
  const act = { ArrowLeft: () => move(-0.5), ArrowRight: () => move(0.5), '+': () => zoom(0.5), '-': () => zoom(2), l: follow, d: () => diagnose(), Escape: close }[event.key];
  if (act && recording) { event.preventDefault(); act(); }
});
let waiting = 0;
addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(resize, 100); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
addEventListener('beforeprint', () => { onPaper = true; draw(); });
addEventListener('afterprint', () => { onPaper = false; draw(); });
begin();
