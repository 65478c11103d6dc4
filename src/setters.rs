//! Setters of configurations, which callers chain.

/// Declares a method for each field, which sets it and returns the configuration.
macro_rules! setters {
    ($($field:ident: $type:ty,)*) => {$(
        #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
        #[must_use]
        pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )*};
}

pub(crate) use setters;
