//! `roce --version`: version, commit, features, and the library of `roce run`.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;

use crate::output;
use crate::run::library::{self, Origin};

/// Commit that this command was built from. `tools/release/build` sets it; a build script that asks
/// git would compile the crate anew after each commit.
const COMMIT: Option<&str> = option_env!("ROCE_COMMIT");

/// Optional features that this command was built with.
const FEATURES: &[&str] = &[
    #[cfg(feature = "parquet")]
    "parquet",
    #[cfg(feature = "tokio")]
    "tokio",
    #[cfg(roce_bundle)]
    "carries its library",
];

/// The commit, as text.
pub(crate) fn commit() -> &'static str {
    COMMIT.unwrap_or("not recorded: built without ROCE_COMMIT")
}

/// Prints all of it.
pub(crate) fn print() -> Result<ExitCode> {
    let features = if FEATURES.is_empty() { "none".to_owned() } else { FEATURES.join(", ") };
    let library = library::locate().map_or_else(
        |error| format!("none: {error:#}"),
        |found| {
            let origin = match found.origin {
                Origin::Given => ", of ROCE_LIBRARY",
                Origin::Installed => "",
                Origin::Carried => ", carried by this command",
            };
            format!("{}{origin}", found.file.display())
        },
    );
    let mut out = output::stdout();
    writeln!(out, "roce {}", library::VERSION)?;
    writeln!(out, "commit    {}", commit())?;
    writeln!(out, "features  {features}")?;
    writeln!(out, "library   {library}")?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
