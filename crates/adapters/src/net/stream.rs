//! The byte stream of a connection, encrypted or not.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use monoco_core::retry::Failure;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{MailServer, tls};

/// A connection to a mail server, a socket or a courier.
pub struct MailStream(Layer);

enum Layer {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl MailStream {
    pub(super) fn plain(stream: TcpStream) -> Self {
        Self(Layer::Plain(stream))
    }

    pub(super) fn encrypted(stream: TlsStream<TcpStream>) -> Self {
        Self(Layer::Tls(Box::new(stream)))
    }

    /// Tells whether the connection is encrypted and the certificate of the server was verified.
    pub fn is_encrypted(&self) -> bool {
        matches!(self.0, Layer::Tls(_))
    }

    /// Encrypts the connection and verifies that the certificate is valid for `server.host`. The
    /// caller must reject a server that sent more bytes than its answer to STARTTLS: an attacker
    /// may have inserted them before the handshake.
    pub async fn start_tls(self, server: &MailServer, limit: Duration) -> Result<Self, Failure> {
        match self.0 {
            Layer::Plain(stream) => {
                let stream = tls::handshake(stream, server, limit).await?;
                Ok(Self::encrypted(stream))
            }
            layer => Ok(Self(layer)),
        }
    }
}

impl AsyncRead for MailStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Layer::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Layer::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for MailStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Layer::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Layer::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Layer::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Layer::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Layer::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Layer::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl fmt::Debug for MailStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_encrypted() { "MailStream(TLS)" } else { "MailStream(plain)" };
        f.write_str(name)
    }
}
