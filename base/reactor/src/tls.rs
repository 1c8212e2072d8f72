//! TLS between the loop's bytes and the handler's, by rustls.

use std::io::{Read, Write};

use std::sync::Arc;

use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::{Tls, TlsError};

/// One session. Ciphertext goes in and comes out as bytes; the sockets are the loop's.
pub(crate) struct Session {
    connection: Connection,
    /// Set once the handshake is through.
    ready: bool,
}

impl Session {
    pub fn new(tls: &Tls) -> Result<Session, TlsError> {
        Ok(Session::of(ClientConnection::new(tls.config.clone(), tls.name.clone())?.into()))
    }

    /// The other side.
    pub fn serve(config: &Arc<ServerConfig>) -> Result<Session, TlsError> {
        Ok(Session::of(ServerConnection::new(config.clone())?.into()))
    }

    fn of(mut connection: Connection) -> Session {
        // The loop asks for what is to be sent as it comes and holds it itself; rustls' own bound of 64 KiB would lose
        // it.
        connection.set_buffer_limit(None);
        Session { connection, ready: false }
    }

    /// Takes ciphertext, appends plaintext. True when the handshake became complete by it.
    pub fn receive(&mut self, mut cipher: &[u8], plain: &mut Vec<u8>) -> Result<bool, TlsError> {
        while !cipher.is_empty() {
            // Takes some of it at a time: it has a buffer of its own.
            if self.connection.read_tls(&mut cipher)? == 0 {
                break;
            }
            let state = self.connection.process_new_packets()?;
            let waiting = state.plaintext_bytes_to_read();
            let from = plain.len();
            plain.resize(from + waiting, 0);
            self.connection.reader().read_exact(&mut plain[from..])?;
        }
        let now_ready = !self.ready && !self.connection.is_handshaking();
        self.ready |= now_ready;
        Ok(now_ready)
    }

    /// Takes plaintext, to be encrypted when the handshake is through.
    pub fn send(&mut self, plain: &[u8]) -> Result<(), TlsError> {
        Ok(self.connection.writer().write_all(plain)?)
    }

    /// Appends the ciphertext that is to be sent.
    pub fn take(&mut self, cipher: &mut Vec<u8>) -> Result<(), TlsError> {
        while self.connection.wants_write() {
            self.connection.write_tls(cipher)?;
        }
        Ok(())
    }
}
