//! The id of the courier: a random UUID in `courier/id`, created once.

use std::fs::{self, File};
use std::io::{self, Read};

use monoco_core::courier::CourierId;
use monoco_fs::FileOptions;

use super::{Home, HomeError, make_private};

impl Home {
    /// Reads the id of this home directory's courier, and creates it when there is none.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or created, or has no valid id: another id would leave the
    /// leases, drafts and Mail files of this courier without an owner.
    pub fn courier_id(&self) -> Result<CourierId, HomeError> {
        let path = self.path().join("courier/id");
        let io = |error| HomeError::Io { path: path.clone(), error };
        match fs::symlink_metadata(&path) {
            Ok(_) => {
                make_private(&path, 0o600)?;
                let mut text = String::new();
                let file = File::open(&path).map_err(io)?;
                file.take(1024).read_to_string(&mut text).map_err(io)?;
                text.trim().parse().map_err(|_| HomeError::BadCourierId(path.clone()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut bytes = [0; 16];
                let random = getrandom::fill(&mut bytes);
                random.map_err(|error| io(io::Error::other(error.to_string())))?;
                let id = CourierId::from_random(bytes);
                let text = format!("{id}\n");
                monoco_fs::write(&path, text.as_bytes(), FileOptions::PRIVATE_SYNCED)
                    .map_err(|error| io(error.into()))?;
                Ok(id)
            }
            Err(error) => Err(io(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::home::tests::home;

    #[test]
    fn courier_id_is_created_once_and_private() {
        let (_dir, home) = home();
        let id = home.courier_id().unwrap();
        assert_eq!(home.courier_id().unwrap(), id);
        let path = home.path().join("courier/id");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for bad in ["", "courier-1\n"] {
            fs::write(&path, bad).unwrap();
            assert!(matches!(home.courier_id(), Err(HomeError::BadCourierId(_))), "{bad:?}");
        }
    }
}
