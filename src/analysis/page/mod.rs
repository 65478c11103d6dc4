//! A report as one HTML page that needs no network: findings, a table, and per connection plots and
//! a ladder.
//!
//! The page holds its data in two forms: `Data` as JSON, and the packets of each connection as
//! compressed columns that are unpacked when the connection is opened. The script draws at most one
//! point per pixel and goes back to the columns when the reader zooms in. Everything from the
//! capture is put into the page as text, never as markup, and the page's Content-Security-Policy
//! allows only its own script and style, by their digests, and no network access.

mod columns;
mod data;
mod inflight;
mod overview;
mod record;
mod recorder;
mod thin;

use std::io::{self, Write};

use sha2::{Digest, Sha256};

use self::columns::base64;
use self::data::Data;
use super::Report;
use crate::decode::escape_markup;

pub use self::recorder::Recorder;

const TEMPLATE: &str = include_str!("page.html");

/// The style sheets, in order.
const STYLES: [&str; 2] = [include_str!("uplot/uPlot.min.css"), include_str!("page.css")];

/// The scripts, in order.
const SCRIPTS: [&str; 10] = [
    include_str!("uplot/uPlot.iife.min.js"),
    include_str!("script/columns.js"),
    include_str!("script/format.js"),
    include_str!("script/dom.js"),
    include_str!("script/shapes.js"),
    include_str!("script/plots.js"),
    include_str!("script/ladder.js"),
    include_str!("script/connection.js"),
    include_str!("script/overview.js"),
    include_str!("script/main.js"),
];

/// Writes a report and what was recorded of its packets as an HTML page.
pub fn write_page(report: &Report, recorder: &Recorder, out: &mut impl Write) -> io::Result<()> {
    let recorded = recorder.by_connection(report);
    let json = serde_json::to_string(&Data::new(report, &recorded)).map_err(io::Error::other)?;
    let style = STYLES.join("\n");
    let script = SCRIPTS.join("\n");
    let mut rest = TEMPLATE;
    while let Some((text, name, after)) = next_slot(rest) {
        out.write_all(text.as_bytes())?;
        match name {
            "policy" => out.write_all(policy(&script, &style).as_bytes())?,
            "title" => out.write_all(escape_markup(&title(report)).as_bytes())?,
            "style" => out.write_all(style.as_bytes())?,
            "script" => out.write_all(script.as_bytes())?,
            // No "<" in it, so that no text in it can end the element.
            "data" => out.write_all(json.replace('<', "\\u003c").as_bytes())?,
            "packets" => write_packets(report, &recorded, out)?,
            other => unreachable!("the template has a slot {other}"),
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// The text before the next `{{name}}`, the name, and the text after it.
fn next_slot(template: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = template.split_once("{{")?;
    let (name, after) = rest.split_once("}}")?;
    Some((before, name, after))
}

/// Writes one element per connection, which nothing looks at until the connection is opened.
fn write_packets(
    report: &Report,
    recorded: &[recorder::Members<'_>],
    out: &mut impl Write,
) -> io::Result<()> {
    let origin = data::origin(report);
    let mut text = String::new();
    for (connection, members) in report.connections.iter().zip(recorded) {
        let series = (members.left_out()[0] > 0).then_some(&connection.series);
        let found = members.merged();
        let bytes = columns::encode(origin, &found.packets, &found.losses, &found.messages, series);
        text.clear();
        base64(&bytes, &mut text);
        let flow = connection.flow;
        writeln!(out, "<script type=\"text/plain\" id=\"packets-{flow}\">{text}</script>")?;
    }
    Ok(())
}

/// Returns the Content-Security-Policy: nothing is loaded, and only this script and this style are
/// applied.
fn policy(script: &str, style: &str) -> String {
    let digest = |text: &str| {
        let mut out = String::from("'sha256-");
        base64(&Sha256::digest(text.as_bytes()), &mut out);
        out + "'"
    };
    format!(
        "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
        digest(script),
        digest(style)
    )
}

fn title(report: &Report) -> String {
    let names: Vec<_> = report.capture.files.iter().map(|file| file.name.as_str()).collect();
    format!("{} – roce flows", names.join(", "))
}
