//! A chunk: an hour or so of one series, in columns; in memory as it grows, and as bytes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::column::{CLOCK, Column, Kind, Sizes};
use crate::held::{Held, Texts};
use crate::pack::{By, Late, Other, Others, Packed, Packing, put_words, words};
use crate::wire::{Cursor, put_bytes, put_signed, put_varint};
use crate::words::Words;
use crate::{Stamp, Value};

// What a writer keeps to, so that a reader may refuse more: values and rows of a chunk, and its bytes before zstd.
pub const CELLS_DUE: usize = 2 << 20;
/// All chunks end when their rows have this many values together: to end and to read them takes seconds.
pub const CELLS_DUE_OF_ALL: usize = 64 << 20;
pub const NOTE_BYTES_DUE: usize = 4 << 20;
pub const MAX_FIELDS: usize = 16_384;
pub const MAX_NAME: usize = 1_024;
pub const MAX_TEXT: usize = 4_096;
pub const MAX_TEXTS: usize = 1_024;
pub const MAX_PAYLOAD: usize = 1 << 20;
const MAX_CELLS: usize = 8 << 20;
// One sample more than a writer should have taken is read yet.
const _: () = assert!(2 * CELLS_DUE + MAX_FIELDS + 3 <= MAX_CELLS);
const MAX_COLUMNS: usize = 4 * MAX_FIELDS;
const MAX_RAW: usize = 64 << 20;
/// How many of the preceding columns are tried as a reference for the next one.
const OTHERS: usize = 64;

/// What is read of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// Texts and events: its columns stay empty.
    Notes,
}

/// How a chunk's numbers stand in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Among all the rest, before zstd: formats 1 and 2.
    Plain,
    /// Those that change are coded, and stand behind what zstd packed.
    Coded,
}

/// What is kept once: a text that changed, or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub seq: u64,
    pub at: Stamp,
    pub said: Saying,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Saying {
    Text { name: Arc<str>, value: Arc<str> },
    Event { kind: String, payload: Vec<u8> },
}

impl Saying {
    pub fn put(&self, out: &mut Vec<u8>) {
        let (byte, first, second) = match self {
            Saying::Text { name, value } => (0, &**name, value.as_bytes()),
            Saying::Event { kind, payload } => (1, kind.as_str(), payload.as_slice()),
        };
        out.push(byte);
        put_bytes(out, first.as_bytes());
        put_bytes(out, second);
    }

    pub fn read(bytes: &mut Cursor<'_>) -> Option<Saying> {
        match bytes.byte()? {
            0 => Some(Saying::Text { name: bytes.text()?.into(), value: bytes.text()?.into() }),
            1 => Some(Saying::Event { kind: bytes.text()?.to_string(), payload: bytes.bytes()?.to_vec() }),
            _ => None,
        }
    }
}

/// What an index says of a chunk: enough to leave it unread. Sequence numbers begin at 1; 0 is "none".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub series: Arc<str>,
    pub rows: u64,
    pub seq_first: u64,
    pub seq_last: u64,
    pub note_last: u64,
    pub wall_min: i64,
    pub wall_max: i64,
}

impl Meta {
    pub fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.series.as_bytes());
        for number in [self.rows, self.seq_first, self.seq_last, self.note_last] {
            put_varint(out, number);
        }
        put_signed(out, self.wall_min);
        put_signed(out, self.wall_max);
    }

    pub fn read(bytes: &mut Cursor<'_>) -> Option<Meta> {
        let series = bytes.text()?.into();
        let [rows, seq_first, seq_last, note_last] =
            [bytes.varint()?, bytes.varint()?, bytes.varint()?, bytes.varint()?];
        let [wall_min, wall_max] = [bytes.signed()?, bytes.signed()?];
        Some(Meta { series, rows, seq_first, seq_last, note_last, wall_min, wall_max })
    }
}

#[derive(Clone, Debug)]
pub struct Chunk {
    pub series: Arc<str>,
    seqs: Words,
    walls: Words,
    monos: Words,
    columns: Vec<Column>,
    /// Places of the columns, by name and kind.
    by_name: Vec<u32>,
    /// The texts that held when it began.
    pub state: Texts,
    pub notes: Vec<Note>,
    cells: usize,
    row_bytes: usize,
    note_bytes: usize,
}

/// Room for some more. Thousands of chunks are open at a time: room for twice as many would be much.
fn reserve<T>(all: &mut Vec<T>) {
    if all.len() == all.capacity() {
        all.reserve_exact((all.len() / 8).max(32));
    }
}

/// Names are shared, so most are told without looking at their letters.
fn is_same(a: &Arc<str>, b: &Arc<str>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// The wall clock in us: the reference for the servers' own clocks.
fn clock_us(walls_ms: &[u64]) -> Vec<u64> {
    walls_ms.iter().map(|ms| ms.wrapping_mul(1000)).collect()
}

/// By how much the wall clock is ahead of the other one; taken from the wall clock again it gives the other one.
fn clock_ahead(walls: &[u64], monos: &[u64]) -> Vec<u64> {
    walls.iter().zip(monos).map(|(wall, mono)| wall.wrapping_sub(*mono)).collect()
}

/// Numbers that are told by nothing but themselves.
fn alone(bytes: &mut Packed<'_>, count: usize) -> Option<Vec<u64>> {
    words(bytes, count)?.alone()
}

impl Chunk {
    pub fn new(series: Arc<str>, state: Texts) -> Chunk {
        Chunk {
            series,
            seqs: Words::default(),
            walls: Words::default(),
            monos: Words::default(),
            columns: Vec::new(),
            by_name: Vec::new(),
            state,
            notes: Vec::new(),
            cells: 0,
            row_bytes: 0,
            note_bytes: 0,
        }
    }

    pub fn push<'a>(&mut self, seq: u64, at: Stamp, values: impl Iterator<Item = (&'a Arc<str>, Value)>) {
        let row = self.seqs.len();
        self.row_bytes += self.seqs.push(seq) + self.walls.push(at.wall_ms as u64) + self.monos.push(at.mono_ms);
        self.cells += 3;
        let mut next = 0;
        for (name, value) in values {
            let (kind, word) = Kind::split(value);
            // Rows list their values in the same order nearly always.
            let is_next = self.columns.get(next).is_some_and(|c| c.kind == kind && is_same(&c.name, name));
            let place = if is_next { next } else { self.place(name, kind) };
            next = place + 1;
            self.row_bytes += self.columns[place].push(row, word);
            self.cells += 1;
        }
    }

    /// The column of a name and a kind; a new one, if there is none.
    fn place(&mut self, name: &Arc<str>, kind: Kind) -> usize {
        let key = |place: &u32| {
            let column = &self.columns[*place as usize];
            (&*column.name, column.kind)
        };
        match self.by_name.binary_search_by(|place| key(place).cmp(&(&**name, kind))) {
            Ok(at) => self.by_name[at] as usize,
            Err(at) => {
                let place = self.columns.len();
                self.by_name.insert(at, place as u32); // far below: the limits of this file
                reserve(&mut self.columns);
                self.columns.push(Column::new(name.clone(), kind));
                place
            }
        }
    }

    pub fn note(&mut self, note: Note) {
        self.note_bytes += match &note.said {
            Saying::Text { name, value } => name.len() + value.len(),
            Saying::Event { kind, payload } => kind.len() + payload.len(),
        };
        self.note_bytes += 32;
        reserve(&mut self.notes);
        self.notes.push(note);
    }

    pub fn rows(&self) -> usize {
        self.seqs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows() == 0 && self.notes.is_empty()
    }

    /// What its rows and notes take in memory. Each column takes some 250 bytes more, as soon as it is there: were they
    /// counted, many open chunks would never grow.
    pub fn bytes(&self) -> usize {
        self.row_bytes + self.note_bytes
    }

    /// How many values its rows have.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Whether it is so large that it must end, whatever its age.
    pub fn is_due(&self) -> bool {
        self.cells >= CELLS_DUE || self.note_bytes >= NOTE_BYTES_DUE || self.columns.len() >= MAX_FIELDS
    }

    /// Whether one more sample could make it larger than a reader takes.
    pub fn is_over(&self) -> bool {
        self.cells >= 2 * CELLS_DUE || self.note_bytes >= 2 * NOTE_BYTES_DUE || self.columns.len() >= 2 * MAX_FIELDS
    }

    /// To be called before its rows are read one by one.
    pub fn thaw(&mut self) {
        [&mut self.seqs, &mut self.walls, &mut self.monos].into_iter().for_each(Words::thaw);
        self.columns.iter_mut().for_each(Column::thaw);
    }

    pub fn stamp(&self, row: usize) -> Option<(u64, Stamp)> {
        let (seq, wall, mono) = (self.seqs.get(row)?, self.walls.get(row)?, self.monos.get(row)?);
        Some((seq, Stamp { wall_ms: wall as i64, mono_ms: mono }))
    }

    /// Of the newest row or note.
    pub fn newest(&self) -> Option<Stamp> {
        let row = self.walls.last().zip(self.monos.last());
        let row = row.map(|(wall, mono_ms)| Stamp { wall_ms: wall as i64, mono_ms });
        row.into_iter().chain(self.notes.last().map(|note| note.at)).max_by_key(|at| at.mono_ms)
    }

    pub fn values(&self, row: usize) -> impl Iterator<Item = (&Arc<str>, Value)> {
        (0..self.columns.len()).filter_map(move |place| Some((&self.columns[place].name, self.at(place, row)?)))
    }

    /// The value of the column at a place.
    pub fn at(&self, place: usize, row: usize) -> Option<Value> {
        let column = self.columns.get(place)?;
        let at = column.place(row)?;
        self.words(place).get(at).map(|word| column.kind.join(word))
    }

    /// The numbers of the column at a place. Of one that cannot be decoded there are none.
    fn words(&self, place: usize) -> &Words {
        let Column { coded, words, .. } = &self.columns[place];
        let Some(coded) = coded else { return words };
        coded.known.get_or_init(|| self.decode_late(place, &coded.late).map_or(Words::Constant(0, 0), Words::of))
    }

    fn decode_late(&self, place: usize, late: &Late) -> Option<Vec<u64>> {
        // Those before it need fewer than DEPTH_MAX others each.
        let others = match late.by {
            By::Nothing => Default::default(),
            By::Place(CLOCK) => [clock_us(&self.walls.all()).into(), Cow::Borrowed(&[][..])],
            By::Place(other) => [self.words(other - 1).all(), Cow::Borrowed(&[][..])],
            By::LastTwo => [place - 2, place - 1].map(|other| self.words(other).all()),
        };
        late.words([&others[0], &others[1]])
    }

    /// Whether all columns can be decoded.
    pub fn is_sound(&self) -> bool {
        let is_sound = |(place, column): (usize, &Column)| {
            column.coded.as_ref().is_none_or(|coded| self.words(place).len() == coded.late.count)
        };
        self.columns.iter().enumerate().all(is_sound)
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.columns.iter().map(|c| &c.name)
    }

    pub fn meta(&self) -> Meta {
        let (seqs, walls) = (self.seqs.all(), self.walls.all());
        let walls = || walls.iter().map(|w| *w as i64).chain(self.notes.iter().map(|n| n.at.wall_ms));
        Meta {
            series: self.series.clone(),
            rows: self.rows() as u64,
            seq_first: seqs.first().copied().unwrap_or(0),
            seq_last: seqs.last().copied().unwrap_or(0),
            note_last: self.notes.last().map_or(0, |n| n.seq),
            wall_min: walls().min().unwrap_or(0),
            wall_max: walls().max().unwrap_or(0),
        }
    }

    /// The body of its frame.
    pub fn pack(&self, level: i32) -> io::Result<Vec<u8>> {
        let Packing { plain, coded } = self.encode();
        let mut body = Vec::new();
        self.meta().put(&mut body);
        put_varint(&mut body, plain.len() as u64);
        put_bytes(&mut body, &zstd::bulk::compress(&plain, level)?);
        body.extend_from_slice(&coded);
        Ok(body)
    }

    /// `None` for what no writer makes: memory is bounded by the limits above, whatever the bytes claim.
    pub fn unpack(body: &[u8], form: Form, wanted: Wanted) -> Option<Chunk> {
        let mut bytes = Cursor::new(body);
        let meta = Meta::read(&mut bytes)?;
        let plain_bytes = usize::try_from(bytes.varint()?).ok().filter(|n| *n <= MAX_RAW)?;
        let (packed, coded) = match form {
            Form::Plain => (bytes.rest(), &[][..]),
            Form::Coded => (bytes.bytes()?, bytes.rest()),
        };
        let plain = zstd::bulk::decompress(packed, plain_bytes).ok().filter(|plain| plain.len() == plain_bytes)?;
        let bytes = Packed { plain: Cursor::new(&plain), coded: Cursor::new(coded) };
        let chunk = Chunk::decode(meta.series.clone(), bytes, form, wanted)?;
        (chunk.meta() == meta).then_some(chunk)
    }

    fn encode(&self) -> Packing {
        let mut out = Packing::default();
        put_varint(&mut out.plain, self.rows() as u64);
        let [seqs, walls, monos] = [&self.seqs, &self.walls, &self.monos].map(Words::all);
        put_words(&mut out, &seqs, Others::default());
        put_words(&mut out, &walls, Others::default());
        // Both run at one pace.
        put_words(&mut out, &clock_ahead(&walls, &monos), Others::default());
        put_varint(&mut out.plain, self.columns.len() as u64);
        self.encode_columns(&mut out, &clock_us(&walls));
        put_varint(&mut out.plain, self.state.len() as u64);
        for held in self.state.iter() {
            put_bytes(&mut out.plain, held.name.as_bytes());
            put_bytes(&mut out.plain, held.value.as_bytes());
            put_signed(&mut out.plain, held.since_ms);
        }
        put_varint(&mut out.plain, self.notes.len() as u64);
        let numbers: [fn(&Note) -> u64; 3] = [|n| n.seq, |n| n.at.wall_ms as u64, |n| n.at.mono_ms];
        for number in numbers {
            put_words(&mut out, &self.notes.iter().map(number).collect::<Vec<u64>>(), Others::default());
        }
        self.notes.iter().for_each(|n| n.said.put(&mut out.plain));
        out
    }

    fn encode_columns(&self, out: &mut Packing, clock_us: &[u64]) {
        let all: Vec<Cow<'_, [u64]>> = (0..self.columns.len()).map(|place| self.words(place).all()).collect();
        let (mut depths, mut sizes) = (Vec::new(), Sizes::new(self.rows(), MAX_CELLS.saturating_sub(3 * self.rows())));
        let mut moving = VecDeque::from([Other { place: CLOCK, words: clock_us, depth: 0 }]);
        for (place, (column, words)) in self.columns.iter().zip(&all).enumerate() {
            let as_many = |other: &Other<'_>| other.words.len() == words.len();
            let alike: Vec<Other<'_>> = moving.iter().filter(|other| as_many(other)).copied().collect();
            let two = place.checked_sub(2).map(|first| [first, first + 1]);
            let two = two.filter(|two| two.iter().all(|place| self.columns[*place].kind != Kind::Float));
            let two = two.map(|two| two.map(|place| Other { place, words: &all[place], depth: depths[place] }));
            let last_two = two.filter(|two| two.iter().all(as_many));
            let depth = column.encode(out, &mut sizes, words, Others { moving: &alike, last_two });
            depths.push(depth.unwrap_or(0));
            if let Some(depth) = depth {
                moving.push_back(Other { place: place + 1, words, depth });
                if moving.len() > OTHERS {
                    moving.pop_front();
                }
            }
        }
    }

    /// For fuzzing: these bytes as what a frame holds, behind zstd.
    pub fn of_bytes(plain: &[u8], coded: &[u8], wanted: Wanted) -> Option<Chunk> {
        let bytes = Packed { plain: Cursor::new(plain), coded: Cursor::new(coded) };
        Chunk::decode("".into(), bytes, Form::Coded, wanted)
    }

    fn decode(series: Arc<str>, mut bytes: Packed<'_>, form: Form, wanted: Wanted) -> Option<Chunk> {
        let mut chunk = Chunk::new(series, Texts::default());
        let rows = usize::try_from(bytes.plain.varint()?).ok()?;
        let mut sizes = Sizes::new(rows, MAX_CELLS.checked_sub(rows.checked_mul(3)?)?);
        let [seqs, walls] = [alone(&mut bytes, rows)?, alone(&mut bytes, rows)?];
        let monos = alone(&mut bytes, rows)?;
        let monos = if form == Form::Plain { monos } else { clock_ahead(&walls, &monos) };
        (chunk.seqs, chunk.walls, chunk.monos) = (Words::of(seqs), Words::of(walls), Words::of(monos));
        for _ in 0..bytes.plain.count(3).filter(|n| *n <= MAX_COLUMNS)? {
            match wanted {
                Wanted::Notes => Column::pass(&mut bytes, &mut sizes)?,
                Wanted::All => {
                    let column = Column::decode(&mut bytes, &mut sizes, &chunk.columns)?;
                    chunk.columns.push(column);
                }
            }
        }
        for _ in 0..bytes.plain.count(3).filter(|n| *n <= MAX_TEXTS)? {
            let (name, value) = (bytes.plain.text()?.into(), bytes.plain.text()?.into());
            chunk.state.put(Held { name, value, since_ms: bytes.plain.signed()? });
        }
        let notes = bytes.plain.count(3).filter(|n| *n <= MAX_CELLS)?;
        let mut numbers = || alone(&mut bytes, notes);
        let [seqs, walls, monos] = [numbers()?, numbers()?, numbers()?];
        for ((seq, wall), mono_ms) in seqs.into_iter().zip(walls).zip(monos) {
            let at = Stamp { wall_ms: wall as i64, mono_ms };
            chunk.note(Note { seq, at, said: Saying::read(&mut bytes.plain)? });
        }
        (bytes.plain.is_empty() && bytes.coded.is_empty()).then_some(chunk)
    }
}
