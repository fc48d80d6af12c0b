//! As much of the Redis protocol as the measurement needs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use crate::common::Result;

/// What Redis answers; an error becomes ours.
#[derive(Debug)]
pub enum Answer {
    Nothing,
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Answer>),
}

impl Answer {
    /// One item of a list.
    pub fn nth(self, index: usize) -> Result<Answer> {
        let list = self.list()?;
        list.into_iter().nth(index).ok_or_else(|| format!("a list without item {index}").into())
    }

    /// A list.
    pub fn list(self) -> Result<Vec<Answer>> {
        match self {
            Answer::List(list) => Ok(list),
            other => Err(format!("wanted a list, got {other:?}").into()),
        }
    }

    /// A string.
    pub fn bytes(self) -> Result<Vec<u8>> {
        match self {
            Answer::Bytes(bytes) => Ok(bytes),
            other => Err(format!("wanted a string, got {other:?}").into()),
        }
    }
}

/// One connection, its buffers kept.
pub struct Connection {
    stream: BufReader<TcpStream>,
    out: Vec<u8>,
    line: String,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream), out: Vec::new(), line: String::new() }
    }

    /// Sends one command and waits for its answer.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<Answer> {
        self.add(words)?;
        self.send()?;
        self.answer()
    }

    /// Adds a command to those that [`send`](Self::send) will send.
    pub fn add(&mut self, words: &[&[u8]]) -> Result<()> {
        write!(self.out, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.out, "${}\r\n", word.len())?;
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
        Ok(())
    }

    /// Sends what was added, in one piece.
    pub fn send(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Waits for the next answer.
    pub fn answer(&mut self) -> Result<Answer> {
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        let line = self.line.trim_end();
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err("Redis closed the connection".into());
        };
        match kind {
            "+" => Ok(Answer::Bytes(rest.as_bytes().to_vec())),
            "-" => Err(format!("Redis says {rest}").into()),
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
            _ => Err(format!("not an answer: {line:?}").into()),
        }
    }
}
