//! Print the body of an answer as it comes, decompressed as reqwest does by itself.

use std::error::Error;
use std::io::{self, Read, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let client = reqwest::blocking::Client::builder()
        .no_proxy()
        .timeout(None)
        .build()?;
    let mut answer = client
        .get(&arguments[1])
        .header("Accept", &arguments[2])
        .send()?
        .error_for_status()?;
    let mut out = io::stdout();
    let mut piece = [0; 65536];
    loop {
        let size = answer.read(&mut piece)?;
        if size == 0 {
            return Ok(());
        }
        out.write_all(&piece[..size])?;
        out.flush()?;
    }
}
