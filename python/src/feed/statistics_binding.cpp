#include "feed/feed_account.hpp"

#include <penstock/core/feed_figures.hpp>

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace penstock::python {
namespace {

// Defines a property for each figure of a list, with the type of its values.
template <typename Of, typename Figures>
void bind_figures(nb::class_<Of>& bound, const Figures& figures) {
  for (const auto& figure : figures) {
    const auto bind = [&](auto example) {
      bound.def_prop_ro(figure.name.data(), [value = figure.value](const Of& of) {
        return std::get<decltype(example)>(value(of));
      });
    };
    std::visit(bind, figure.value(Of{}));
  }
}

nb::dict as_dict(const FeedStatistics& statistics) {
  nb::dict figures;
  for (const FeedFigure& figure : feed_figures()) {
    if (!figure.applies_to(statistics)) continue;
    std::visit([&](auto value) { figures[figure.name.data()] = value; }, figure.value(statistics));
  }
  if (!statistics.wraps_loader) figures["failures"] = nb::cast(statistics.failures);
  figures["sentence"] = statistics.sentence();
  return figures;
}

std::vector<std::pair<std::string_view, std::string>> lines(const FeedStatistics& statistics) {
  std::vector<std::pair<std::string_view, std::string>> lines;
  for (FeedLine& line : feed_lines(statistics)) {
    if (!line.text.empty()) lines.emplace_back(line.label, std::move(line.text));
  }
  return lines;
}

std::string text_of(const FeedStatistics& statistics) {
  std::ostringstream text;
  text << statistics;
  return text.str();
}

std::string text_of(const BatchTimes& times) {
  std::ostringstream text;
  const char* between = "";
  for (const BatchFigure& figure : batch_figures()) {
    text << std::exchange(between, ", ") << figure.name << '=';
    std::visit([&](const auto& value) { text << value; }, figure.value(times));
  }
  return text.str();
}

}  // namespace

void bind_statistics(nb::module_& module) {
  nb::class_<FeedStatistics> statistics(
      module, "FeedStatistics",
      "What a feed did, and where its time went. docs/statistics.md explains each figure.");
  bind_figures(statistics, feed_figures());
  statistics.def("as_dict", &as_dict, "Every figure that applies, and the sentence, by name.")
      .def("lines", &lines, "Names and texts, as printed.")
      .def("sentence", &FeedStatistics::sentence,
           "What sets the pace, with figures of the table, and what to do next.")
      .def_ro("failures", &FeedStatistics::failures, "What is wrong with the first of `failed_samples`.")
      .def("__str__", [](const FeedStatistics& self) { return text_of(self); })
      .def("__repr__",
           [](const FeedStatistics& self) { return "<penstock.FeedStatistics\n" + text_of(self) + ">"; });
  nb::class_<BatchTimes> times(module, "BatchTimes",
                               "When the stages of one batch began and ended, in seconds on one clock.");
  bind_figures(times, batch_figures());
  times.def("__repr__", [](const BatchTimes& self) { return "BatchTimes(" + text_of(self) + ")"; });
}

}  // namespace penstock::python
