"""One self-contained HTML report."""

from dynwarp.report._page import Figure as Figure
from dynwarp.report._page import Section as Section
from dynwarp.report._page import Table as Table
from dynwarp.report._page import Text as Text
from dynwarp.report._page import page as page
