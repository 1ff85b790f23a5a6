//! Tables. Each scrolls in a box of its own, so that the page never does.

use maud::{Markup, html};

use crate::table::{Cell, Mark, Table};

/// Letters of a line in a cell.
const LINE: usize = 36;

/// One table. The box takes the focus, so that it can be scrolled by keys.
pub(super) fn table(table: &Table) -> Markup {
    let class = if table.is_narrow { "narrow" } else { "" };
    html! {
        div.scroll role="region" tabindex="0" aria-label=(table.caption) {
            table class=[(!class.is_empty()).then_some(class)] {
                caption { (table.caption) }
                thead {
                    tr {
                        @for column in &table.columns {
                            th scope="col" class=[column.is_numeric.then_some("number")] { span { (column.name) } }
                        }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr {
                            @for (index, cell) in row.iter().enumerate() {
                                @let is_numeric = table.columns.get(index).is_some_and(|it| it.is_numeric);
                                @if index == 0 { th scope="row" class=[is_long(cell).then_some("long")] { (cell.text) } }
                                @else { td class=[class_of(cell, is_numeric)] { (cell.text) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether a text may be broken into lines; others stand in one.
fn is_long(cell: &Cell) -> bool {
    cell.text.chars().count() > LINE
}

fn class_of(cell: &Cell, is_numeric: bool) -> Option<&'static str> {
    match (cell.mark, is_numeric) {
        (Mark::Good, _) => Some("number good"),
        (Mark::Bad, _) => Some("number bad"),
        (Mark::None, true) => Some("number"),
        (Mark::None, false) => is_long(cell).then_some("long"),
    }
}
