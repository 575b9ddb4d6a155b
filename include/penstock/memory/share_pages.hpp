#pragma once

#include <penstock/core/function_ref.hpp>
#include <penstock/core/shared_pages.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace penstock {

struct ShareOptions {
  /// Names what is shared: the same text in the processes that share it, and in no other job of this user.
  std::string key;
  /// How many processes share it, with this one. They see each other's processes and abstract sockets: they
  /// run on one host, in one network namespace.
  std::size_t processes = 1;
  /// Called from time to time while another process makes the pages; by share_dataset also while samples are
  /// read. May throw, which ends it.
  std::function<void()> while_waiting{};
};

/// Pages with a text that says what is in them.
struct MadePages {
  std::shared_ptr<const SharedPages> pages;
  std::string note;
};

class PageServer;

/// Pages that several processes have. The memory goes when none of them has it any more.
struct CommonPages : MadePages {
  bool made_here = false;
  /// Gives the pages to the other processes, if they were made here. It ends once all have them.
  std::shared_ptr<PageServer> server{};
};

/// The first process that comes makes the pages. The others wait, and map the same ones. Blocks the host.
/// They meet at an abstract socket: no file is left behind, also if all are killed. Only processes of the
/// same user and PID namespace are let in and believed. Throws what `make` throws, and Error in the processes
/// that wait by then, if the process that makes the pages fails or ends; one that comes later makes them
/// itself. Throws InvalidArgument for no processes, an empty key or one above 64 KiB, Unsupported if the
/// system refuses.
[[nodiscard]] CommonPages share_pages(const ShareOptions& options, FunctionRef<MadePages()> make);

}  // namespace penstock
