//! Tables of HTML: data becomes a Markdown table, layout becomes text.

/// Most columns of a table that is written as one.
const MAX_COLUMNS: usize = 32;

/// A table whose cells are being read.
#[derive(Debug)]
pub(super) struct HtmlTable {
    rows: Vec<Vec<String>>,
    /// Whether it arranges content and has no data.
    pub is_layout: bool,
}

impl HtmlTable {
    pub fn new(is_layout: bool) -> Self {
        Self { rows: Vec::new(), is_layout }
    }

    pub fn begin_row(&mut self) {
        self.rows.push(Vec::new());
    }

    pub fn add_cell(&mut self, markdown: String) {
        if self.rows.is_empty() {
            self.begin_row();
        }
        if let Some(row) = self.rows.last_mut() {
            row.push(markdown);
        }
    }

    /// Writes the table as Markdown.
    pub fn markdown(mut self) -> String {
        self.rows.retain(|row| row.iter().any(|cell| !cell.is_empty()));
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let is_line = |cell: &String| !cell.contains('\n');
        let is_data = !self.is_layout
            && self.rows.len() > 1
            && (2..=MAX_COLUMNS).contains(&columns)
            && self.rows.iter().flatten().all(is_line);
        if is_data { self.data(columns) } else { self.layout() }
    }

    fn data(&self, columns: usize) -> String {
        let mut out = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            for column in 0..columns {
                let cell = row.get(column).map_or("", String::as_str);
                out.push_str("| ");
                out.push_str(&cell.replace('|', "\\|"));
                out.push_str(if cell.is_empty() { "" } else { " " });
            }
            out.push_str("|\n");
            if number == 0 {
                out.push_str(&"| --- ".repeat(columns));
                out.push_str("|\n");
            }
        }
        out
    }

    /// Cells of one line stand side by side, others below each other.
    fn layout(&self) -> String {
        let mut out = String::new();
        for row in &self.rows {
            let mut is_beside = false;
            for cell in row.iter().filter(|cell| !cell.is_empty()) {
                let is_line = !cell.contains('\n');
                if !out.is_empty() {
                    out.push_str(match (is_beside, is_line) {
                        (true, true) => " ",
                        (_, true) => "\n",
                        (_, false) => "\n\n",
                    });
                }
                out.push_str(cell);
                is_beside = is_line;
                if !is_line {
                    out.push('\n');
                }
            }
        }
        out.truncate(out.trim_end().len());
        out
    }
}
