#pragma once

#include <penstock/core/function_ref.hpp>
#include <penstock/data/dataset.hpp>
#include <penstock/memory/share_pages.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace penstock {

/// A dataset, and a text about it for the processes that did not make it.
struct MadeDataset {
  Dataset dataset;
  std::string note{};
};

/// A dataset that several processes of a host have, in one copy.
struct SharedDataset {
  Dataset dataset;  ///< its fields lie in the pages, and keep them alive; they must not be written
  std::string note;
  std::shared_ptr<const CommonPages> pages;
};

/// The first process that comes makes the dataset, and its samples are read into shared pages: arrays are
/// copied, files are read there. The others map the pages. Each Loader locks them for its own device. Blocks
/// the host until the samples are there. While they are copied, arrays take memory twice.
///
/// The pages lie on all NUMA nodes in turn: each GPU reads as much from its own node as from others, and a
/// copy on each node would take the memory again. Throws as share_pages, and OutOfMemory if the host has less
/// memory than the samples take.
[[nodiscard]] SharedDataset share_dataset(const ShareOptions& options, FunctionRef<MadeDataset()> make);

}  // namespace penstock
