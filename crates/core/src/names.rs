//! Macros for types that have a text form: named variants, and ids that are parsed.

/// Gives each variant of an enum its name in the API, the CLI and the store.
macro_rules! variant_names {
    ($type:ident: $($variant:ident = $name:literal),* $(,)?) => {
        impl $type {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name in the API, the CLI and the store.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|variant| variant.as_str() == text)
            }
        }
    };
}

/// Converts an id from and to a `String` for serde, with its `FromStr` and a function.
macro_rules! text_conversions {
    ($type:ident, $error:ident, $into_text:expr) => {
        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(id: $type) -> Self {
                let into_text: fn($type) -> Self = $into_text;
                into_text(id)
            }
        }
    };
}

pub(crate) use {text_conversions, variant_names};
