//! Segments: files of finished chunks, with an index at the end that is rebuilt by reading when it is missing.

use std::io::ErrorKind;
use std::sync::Arc;

use crate::chunk::{Chunk, Form, Meta, Wanted};
use crate::frame::{self, FileKind, HEADER_BYTES, Piece, Scan, VERSION};
use crate::wire::{Cursor, put_varint};
use crate::{Damage, DamageKind, Disk, Error};

/// Of formats 1 and 2.
const PLAIN_CHUNK: u8 = 1;
const FOOTER: u8 = 2;
pub const CHUNK: u8 = 3;
const TRAILER_BYTES: usize = 16;
const TRAILER_MAGIC: [u8; 4] = *b"seg.";
/// No writer makes a larger file: segments end at a bound, and a chunk has one too.
pub const MAX_FILE: u64 = 256 << 20;

/// Where a chunk is.
#[derive(Clone, Debug)]
pub struct Entry {
    pub file: Arc<str>,
    pub at: u64,
    pub bytes: u64,
    pub meta: Meta,
}

impl Entry {
    fn damage(&self, kind: DamageKind) -> Damage {
        Damage { file: self.file.to_string(), at: self.at, bytes: self.bytes, kind }
    }

    /// Reads all of it.
    pub fn check<D: Disk>(&self, disk: &D) -> Result<(), Damage> {
        match self.read(disk, Wanted::All)? {
            Some(chunk) if !chunk.is_sound() => Err(self.damage(DamageKind::Content)),
            _ => Ok(()),
        }
    }

    /// `Ok(None)` when the file is gone: retention deleted it.
    pub fn read<D: Disk>(&self, disk: &D, wanted: Wanted) -> Result<Option<Chunk>, Damage> {
        let damage = |kind| self.damage(kind);
        let bytes = match disk.read(&self.file, self.at, self.bytes) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(_) => return Err(damage(DamageKind::Unreadable)),
        };
        match Scan::new(&bytes, 0).next() {
            Some(Piece::Frame { kind: kind @ (CHUNK | PLAIN_CHUNK), body, .. }) => {
                let chunk = Chunk::unpack(body, form(kind), wanted);
                let chunk = chunk.filter(|chunk| chunk.series == self.meta.series);
                chunk.map(Some).ok_or_else(|| damage(DamageKind::Content))
            }
            Some(Piece::Bad { kind, .. }) => Err(damage(kind)),
            _ => Err(damage(DamageKind::Content)),
        }
    }
}

fn form(kind: u8) -> Form {
    if kind == PLAIN_CHUNK { Form::Plain } else { Form::Coded }
}

/// Index and trailer, to be appended to a segment that ends.
pub fn footer(entries: &[Entry], at: u64) -> Vec<u8> {
    let mut body = Vec::new();
    put_varint(&mut body, entries.len() as u64);
    for entry in entries {
        put_varint(&mut body, entry.at);
        put_varint(&mut body, entry.bytes);
        entry.meta.put(&mut body);
    }
    let mut out = Vec::new();
    frame::put(&mut out, FOOTER, &body);
    let place = at.to_le_bytes();
    out.extend_from_slice(&place);
    out.extend_from_slice(&crc32fast::hash(&place).to_le_bytes());
    out.extend_from_slice(&TRAILER_MAGIC);
    out
}

/// A segment's chunks, by its footer or else by reading it through; `None` when the file is gone.
pub fn load<D: Disk>(disk: &D, name: &str, damage: &mut Vec<Damage>) -> Result<Option<Vec<Entry>>, Error> {
    let size = match disk.size(name) {
        Ok(size) => size,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("look at", name, e)),
    };
    let mut found = |at, bytes, kind| damage.push(Damage { file: name.to_string(), at, bytes, kind });
    if size > MAX_FILE {
        found(0, size, DamageKind::TooLarge);
        return Ok(Some(Vec::new()));
    }
    let read = |at: u64, bytes: u64| match disk.read(name, at, bytes) {
        Ok(bytes) => Some(bytes),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(_) => Some(Vec::new()),
    };
    let Some(header) = read(0, HEADER_BYTES as u64) else { return Ok(None) };
    let start = check_header(FileKind::Segment, name, &header, &mut found)?;
    if let Some(entries) = indexed(name, size, &read) {
        return Ok(Some(entries));
    }
    let Some(all) = read(0, size) else { return Ok(None) };
    if (all.len() as u64) < size {
        found(0, size, DamageKind::Unreadable);
    }
    let (file, mut entries) = (Arc::<str>::from(name), Vec::new());
    for piece in Scan::new(&all, start.min(all.len())) {
        match piece {
            Piece::Frame { at, bytes, kind: CHUNK | PLAIN_CHUNK, body } => match Meta::read(&mut Cursor::new(body)) {
                Some(meta) => entries.push(Entry { file: file.clone(), at: at as u64, bytes: bytes as u64, meta }),
                None => found(at as u64, bytes as u64, DamageKind::Content),
            },
            // The trailer that belongs after it is missing or damaged.
            Piece::Frame { at, bytes, kind: FOOTER, .. } => {
                found((at + bytes) as u64, (all.len() - at - bytes) as u64, DamageKind::NoFrame);
                break;
            }
            Piece::Frame { at, bytes, .. } => found(at as u64, bytes as u64, DamageKind::Content),
            Piece::Bad { at, bytes, kind } => found(at as u64, bytes as u64, kind),
        }
    }
    Ok(Some(entries))
}

/// Where the frames begin. A file that is shorter than a header has only just been created.
pub fn check_header(
    kind: FileKind,
    file: &str,
    bytes: &[u8],
    found: &mut impl FnMut(u64, u64, DamageKind),
) -> Result<usize, Error> {
    match frame::version(kind, bytes) {
        Some(version) if (1..=VERSION).contains(&version) => Ok(HEADER_BYTES),
        Some(version) => Err(Error::Version { file: file.to_string(), found: version, newest: VERSION }),
        None if bytes.len() < HEADER_BYTES => {
            if !bytes.is_empty() {
                found(0, bytes.len() as u64, DamageKind::TornTail);
            }
            Ok(bytes.len())
        }
        None => {
            found(0, HEADER_BYTES as u64, DamageKind::Header);
            Ok(HEADER_BYTES)
        }
    }
}

fn indexed(name: &str, size: u64, read: &impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<Vec<Entry>> {
    let end = size.checked_sub(TRAILER_BYTES as u64)?;
    let trailer: [u8; TRAILER_BYTES] = read(end, TRAILER_BYTES as u64)?.try_into().ok()?;
    let (place, rest) = trailer.split_first_chunk::<8>()?;
    let (sum, magic) = rest.split_first_chunk::<4>()?;
    if crc32fast::hash(place).to_le_bytes() != *sum || magic != TRAILER_MAGIC {
        return None;
    }
    let at = u64::from_le_bytes(*place);
    let bytes = read(at, end.checked_sub(at)?)?;
    let Some(Piece::Frame { kind: FOOTER, body, .. }) = Scan::new(&bytes, 0).next() else { return None };
    let mut body = Cursor::new(body);
    let (file, mut entries) = (Arc::<str>::from(name), Vec::new());
    for _ in 0..body.count(9)? {
        let (start, bytes) = (body.varint()?, body.varint()?);
        start.checked_add(bytes).filter(|end| *end <= at)?;
        entries.push(Entry { file: file.clone(), at: start, bytes, meta: Meta::read(&mut body)? });
    }
    Some(entries)
}

/// The numbers of a directory's files of one kind, in order.
pub fn numbers<D: Disk>(disk: &D, kind: FileKind) -> Result<Vec<u64>, Error> {
    let names = disk.names().map_err(|e| Error::io("list", "the recording's directory", e))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|n| kind.number(n)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}
