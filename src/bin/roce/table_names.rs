//! Options that name the partition of a capture in a dataset of tables.

use clap::Args as ClapArgs;

/// The host and the name of a capture in a dataset.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct TableNames {
    /// Host at which the captures were taken: the partition host=HOST of --parquet.
    #[arg(long, value_name = "HOST", requires = "parquet")]
    pub(crate) host: Option<String>,

    /// Name of the capture in the dataset instead of that of its file: the partition capture=NAME
    /// of --parquet.
    #[arg(long, value_name = "NAME", requires = "parquet")]
    pub(crate) capture_name: Option<String>,
}
