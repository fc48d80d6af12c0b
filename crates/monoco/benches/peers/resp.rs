//! The part of the Redis protocol that the benchmark needs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::common::Result;

/// A reply of Redis. An error reply becomes an `Err`.
#[derive(Debug)]
pub enum Answer {
    Nothing,
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Answer>),
}

impl Answer {
    pub fn nth(self, index: usize) -> Result<Answer> {
        let list = self.list()?;
        list.into_iter().nth(index).ok_or_else(|| format!("a list without item {index}").into())
    }

    pub fn list(self) -> Result<Vec<Answer>> {
        match self {
            Answer::List(list) => Ok(list),
            other => Err(format!("expected a list, found {other:?}").into()),
        }
    }

    pub fn bytes(self) -> Result<Vec<u8>> {
        match self {
            Answer::Bytes(bytes) => Ok(bytes),
            other => Err(format!("expected a string, found {other:?}").into()),
        }
    }
}

/// One connection with reused buffers.
pub struct Connection {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    line: String,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream), out: Vec::new(), line: String::new() }
    }

    /// Sends one command and waits for its reply.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<Answer> {
        self.add(words)?;
        self.send()?;
        self.answer()
    }

    /// Buffers a command until [`send`](Self::send).
    pub fn add(&mut self, words: &[&[u8]]) -> Result<()> {
        write!(self.out, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.out, "${}\r\n", word.len())?;
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    /// Sends the buffered commands in one write.
    pub fn send(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Waits for the next reply.
    pub fn answer(&mut self) -> Result<Answer> {
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        let line = self.line.trim_end();
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err("Redis closed the connection".into());
        };
        match kind {
            "+" => Ok(Answer::Bytes(rest.as_bytes().to_vec())),
            "-" => Err(format!("Redis error: {rest}").into()),
            ":" => Ok(Answer::Number(rest.parse()?)),
            "$" | "*" if rest == "-1" => Ok(Answer::Nothing),
            "$" => {
                let length: usize = rest.parse()?;
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Answer::Bytes(bytes))
            }
            "*" => {
                let items: usize = rest.parse()?;
                (0..items).map(|_| self.answer()).collect::<Result<_>>().map(Answer::List)
            }
            _ => Err(format!("not a Redis reply: {line:?}").into()),
        }
    }
}
