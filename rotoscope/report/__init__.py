"""The report: one page about one run or two, or a site about many, to read in a browser, to send and to keep."""

from typing import TYPE_CHECKING

from rotoscope.lazy import attach

if TYPE_CHECKING:
    from rotoscope.experiments.page_data import PAGE as PAGE
    from rotoscope.report.page import render_page as render_page
    from rotoscope.report.page import write_page as write_page
    from rotoscope.report.page import write_report as write_report
    from rotoscope.report.payload import run_payload as run_payload
    from rotoscope.report.site import write_site as write_site

__getattr__, __dir__, __all__ = attach(__name__, __file__)
