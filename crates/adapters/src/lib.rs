//! One folder per provider: hear and speak, nothing else.
