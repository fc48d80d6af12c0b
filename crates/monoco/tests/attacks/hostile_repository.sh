#!/bin/sh
# A repository whose workspace directory has symbolic links, cloned by its victim: no mailbox
# command may read, change, create or delete a file behind a link. Named pipes, which git
# cannot store, are created after the clone: no command may wait for one.
#
# Environment: MONOCO the program, MONOCO_HOME the home of a running courier, MAIL_ID and
# MAIL_FILE id and file name of a Mail in it, SCRATCH an empty directory.
set -eu

victim=$SCRATCH/victim
mkdir -p "$victim/documents" "$victim/empty"
i=0
while [ $i -lt 1200 ]; do
    # Also names that could be ours: a link is not followed, whatever is behind it.
    echo "document $i" > "$victim/documents/webhook_$(printf %024x $i).1.log"
    i=$((i + 1))
done
echo "alias ll='ls -l'" > "$victim/.bashrc"
echo "the text of a secret" > "$victim/secret.yaml"
touch "$victim/documents/$MAIL_FILE"

# All files below the victim's directory, with kind, mode, size, time and content.
snapshot() {
    (cd "$victim" && find . -printf '%p %y %m %s %T@ %l\n' | sort &&
        find . -type f -exec sha256sum {} + | sort)
}
before=$(snapshot)

fail() {
    echo "DAMAGE: $1" >&2
    exit 1
}

# Runs the commands that read or write a workspace, in the directory $1.
use() {
    for command in "sync" "sync --full" "sync --dry-run" "list" "read $MAIL_ID" \
        "explain $MAIL_ID" "wait --timeout 0" "run -- true" "claim $MAIL_ID --agent $2" \
        "fail $MAIL_ID --agent $2"; do
        code=0
        # shellcheck disable=SC2086 # the command is several words
        (cd "$1" && timeout 20 "$MONOCO" mailbox $command) > "$SCRATCH/out" 2>&1 < /dev/null || code=$?
        [ $code -ne 124 ] || fail "$2: mailbox $command did not end"
        ! grep -q 'the text of a secret' "$SCRATCH/out" || fail "$2: mailbox $command printed a secret"
        cat "$SCRATCH/out" >> "$SCRATCH/said-$2"
    done
    [ "$(snapshot)" = "$before" ] || fail "$2: files of the victim have changed: $(
        echo "$before" > "$SCRATCH/before"; snapshot | diff "$SCRATCH/before" - | head -5)"
}

# Commits the link $2 -> $3 in a repository, clones it and uses the clone.
link() {
    repository=$SCRATCH/repository-$1
    git init -q "$repository"
    mkdir -p "$repository/$(dirname "$2")"
    echo "mailbox: {name: $1, filters: [{type: provider, value: webhook}]}" > "$SCRATCH/config"
    if [ -d "$repository/.monoco/mailbox" ]; then
        cp "$SCRATCH/config" "$repository/.monoco/mailbox/config.yaml"
    fi
    rm -f "$repository/$2"
    ln -s "$3" "$repository/$2"
    git -C "$repository" add -A -f
    git -C "$repository" -c user.name=eve -c user.email=eve@example.com commit -q -m "add a workspace"
    git clone -q "$repository" "$SCRATCH/clone-$1"
    [ -L "$SCRATCH/clone-$1/$2" ] || fail "$1: the clone has no link"
    use "$SCRATCH/clone-$1" "$1"
}

box=.monoco/mailbox
link log-dir "$box/log" "$victim/documents"
link log-file "$box/log/$MAIL_ID.1.log" "$victim/.bashrc"
link inbox "$box/inbox" "$victim/documents"
link inbox-empty "$box/inbox" "$victim/empty"
link mail "$box/inbox/$MAIL_FILE" "$victim/.bashrc"
link lock "$box/.lock" "$victim/.bashrc"
link lock-new "$box/.lock" "$victim/created-by-lock"
link cursor "$box/cursor.json" "$victim/.bashrc"
link cursor-new "$box/cursor.json" "$victim/created-by-cursor"
link cursor-temporary "$box/.cursor.json.tmp" "$victim/.bashrc"
link names "$box/names" "$victim/.bashrc"
link config "$box/config.yaml" "$victim/secret.yaml"
link ignore "$box/.gitignore" "$victim/created-by-ignore"
link mailbox "$box" "$victim/empty"
link monoco .monoco "$victim/empty"
link dangling "$box" "$victim/created-by-sync"

# A link where a directory or a file is needed is named.
for name in log-dir inbox lock cursor config mailbox monoco; do
    grep -q 'found a symbolic link, expected a' "$SCRATCH/said-$name" ||
        fail "$name: the link was not reported: $(cat "$SCRATCH/said-$name")"
done

# Creates the named pipe $2 in a new workspace and uses the workspace.
pipe() {
    mkdir -p "$SCRATCH/pipe-$1/$(dirname "$2")" "$SCRATCH/pipe-$1/$box"
    if [ "$2" != "$box/config.yaml" ]; then
        echo "mailbox: {name: pipe-$1, filters: [{type: provider, value: webhook}]}" \
            > "$SCRATCH/pipe-$1/$box/config.yaml"
    fi
    mkfifo "$SCRATCH/pipe-$1/$2"
    use "$SCRATCH/pipe-$1" "$1"
}
pipe config-pipe "$box/config.yaml"
pipe cursor-pipe "$box/cursor.json"
pipe names-pipe "$box/names"
pipe lock-pipe "$box/.lock"
pipe inbox-pipe "$box/inbox"
pipe mail-pipe "$box/inbox/$MAIL_FILE"
pipe log-pipe "$box/log"
pipe log-file-pipe "$box/log/$MAIL_ID.1.log"
for name in config-pipe cursor-pipe lock-pipe inbox-pipe log-pipe; do
    grep -q 'found a named pipe, expected a' "$SCRATCH/said-$name" ||
        fail "$name: the pipe was not reported: $(cat "$SCRATCH/said-$name")"
done
