#include "native_stack.hpp"

#include <link.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace penstock::recorder {

namespace {

struct Search {
  std::uintptr_t address = 0;
  std::span<char> file;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::uintptr_t moved_by = 0;  ///< from where the file says
  bool found = false;
  bool named = false;
};

bool name_file(const char* name, std::span<char> file) noexcept {
  if (file.empty()) return false;
  std::size_t length = std::strlen(name);
  if (length == 0) {  // the program itself
    const ssize_t got = ::readlink("/proc/self/exe", file.data(), file.size());
    length = got < 0 ? 0 : static_cast<std::size_t>(got);
  } else if (length < file.size()) {
    std::memcpy(file.data(), name, length);
  }
  if (length == 0 || length >= file.size()) return false;
  file[length] = 0;
  return true;
}

int look_into(dl_phdr_info* info, std::size_t, void* data) noexcept {
  auto& search = *static_cast<Search*>(data);
  std::uintptr_t begin = UINTPTR_MAX;
  std::uintptr_t end = 0;
  bool found = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t first = info->dlpi_addr + part.p_vaddr;
    found = found || (search.address >= first && search.address - first < part.p_memsz);
    begin = std::min(begin, first);
    end = std::max<std::uintptr_t>(end, first + part.p_memsz);
  }
  if (!found) return 0;
  search.begin = begin;
  search.end = end;
  search.moved_by = info->dlpi_addr;
  search.found = true;
  search.named = name_file(info->dlpi_name, search.file);
  return 1;
}

}  // namespace

/// One look at the stack, as the unwinder calls it.
class NativeStack::Walk {
 public:
  Walk(std::span<const Library> hidden, std::span<std::uintptr_t> calls) noexcept
      : hidden_(hidden), calls_(calls) {}

  static _Unwind_Reason_Code step(_Unwind_Context* context, void* data) noexcept {
    return static_cast<Walk*>(data)->add(context) ? _URC_NO_REASON : _URC_END_OF_STACK;
  }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  [[nodiscard]] bool add(_Unwind_Context* context) noexcept {
    int is_exact = 0;
    const auto next = static_cast<std::uintptr_t>(_Unwind_GetIPInfo(context, &is_exact));
    if (next == 0 || count_ == calls_.size()) return false;
    // A call may be its function's last instruction, and what comes next may belong to another line.
    const std::uintptr_t call = next - (is_exact != 0 ? 0 : 1);
    if (count_ > 0 || !is_hidden(call)) calls_[count_++] = call;
    return count_ < calls_.size();
  }
  [[nodiscard]] bool is_hidden(std::uintptr_t address) const noexcept {
    return std::any_of(hidden_.begin(), hidden_.end(), [address](const Library& library) {
      return address >= library.begin && address < library.end;
    });
  }

  std::span<const Library> hidden_;
  std::span<std::uintptr_t> calls_;
  std::size_t count_ = 0;
};

void NativeStack::hide(const void* address) noexcept {
  if (hidden_count_ == std::size(hidden_)) return;
  Search search;
  search.address = reinterpret_cast<std::uintptr_t>(address);
  ::dl_iterate_phdr(look_into, &search);
  if (search.found) hidden_[hidden_count_++] = {search.begin, search.end};
}

std::size_t NativeStack::own(std::span<std::uintptr_t> calls) const noexcept {
  const std::span<const Library> hidden(hidden_, hidden_count_);
  Walk walk(hidden, calls);
  _Unwind_Backtrace(Walk::step, &walk);
  return walk.count();
}

bool locate_code(std::uintptr_t address, std::span<char> file, std::uint64_t& address_in_file) noexcept {
  Search search;
  search.address = address;
  search.file = file;
  ::dl_iterate_phdr(look_into, &search);
  address_in_file = address - search.moved_by;
  return search.found && search.named;
}

}  // namespace penstock::recorder
