#include "subscriber_watch.hpp"

#include "cupti.hpp"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string_view>

namespace penstock::recorder {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kTableEntries[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#elif defined(__aarch64__)
constexpr std::uint32_t kTableEntries[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#endif

using Subscribe = CuptiResult (*)(CuptiSubscriber*, CuptiCallback, void*);

void (*before_subscriber)() = nullptr;
Subscribe real_subscribe = nullptr;
unsigned long long libraries_seen = 0;

CuptiResult subscribe_after_us(CuptiSubscriber* subscriber, CuptiCallback callback, void* data) {
  before_subscriber();
  return real_subscribe(subscriber, callback, data);
}

struct Protection {
  ElfW(Addr) begin = 0;
  ElfW(Addr) end = 0;
};

/// Writes an address that the loader may have made read-only.
void replace(void** entry, void* with, Protection read_only) noexcept {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(entry);
  void* const begin = reinterpret_cast<void*>(at / page * page);
  const bool locked = at >= read_only.begin && at < read_only.end;
  if (locked && ::mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(entry, with, __ATOMIC_RELEASE);
  if (locked) ::mprotect(begin, page, PROT_READ);
}

struct Tables {
  const char* names = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  struct {
    const ElfW(Rela) * first = nullptr;
    std::size_t bytes = 0;
  } relocations[2];
  Protection read_only;
};

Tables tables_of(const dl_phdr_info& info) noexcept {
  Tables tables;
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const auto& part = info.dlpi_phdr[i];
    const ElfW(Addr) begin = info.dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_DYNAMIC) entry = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (part.p_type == PT_GNU_RELRO) tables.read_only = {begin, begin + part.p_memsz};
  }
  // The loader has made addresses of these, except in the kernel's own object.
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    const void* const at = reinterpret_cast<const void*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_STRTAB) tables.names = static_cast<const char*>(at);
    if (entry->d_tag == DT_SYMTAB) tables.symbols = static_cast<const ElfW(Sym)*>(at);
    if (entry->d_tag == DT_JMPREL) tables.relocations[0].first = static_cast<const ElfW(Rela)*>(at);
    if (entry->d_tag == DT_PLTRELSZ) tables.relocations[0].bytes = entry->d_un.d_val;
    if (entry->d_tag == DT_RELA) tables.relocations[1].first = static_cast<const ElfW(Rela)*>(at);
    if (entry->d_tag == DT_RELASZ) tables.relocations[1].bytes = entry->d_un.d_val;
  }
  return tables;
}

bool is_table_entry(std::uint64_t info) noexcept {
  for (const std::uint32_t type : kTableEntries) {
    if (ELF64_R_TYPE(info) == type) return true;
  }
  return false;
}

int watch_library(dl_phdr_info* info, std::size_t, void*) noexcept {
  const std::string_view path = info->dlpi_name;
  // CUPTI's own calls are its business.
  if (path.find("linux-vdso") != std::string_view::npos ||
      path.find("/libcupti.so") != std::string_view::npos)
    return 0;
  const Tables tables = tables_of(*info);
  if (tables.names == nullptr || tables.symbols == nullptr) return 0;
  for (const auto& list : tables.relocations) {
    for (std::size_t i = 0; list.first != nullptr && i < list.bytes / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela)& relocation = list.first[i];
      if (!is_table_entry(relocation.r_info)) continue;
      const char* const name = tables.names + tables.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
      if (std::strcmp(name, "cuptiSubscribe") != 0) continue;
      replace(reinterpret_cast<void**>(info->dlpi_addr + relocation.r_offset),
              reinterpret_cast<void*>(&subscribe_after_us), tables.read_only);
    }
  }
  return 0;
}

}  // namespace

void watch_for_subscribers(const Cupti& cupti, void (*before)()) noexcept {
  before_subscriber = before;
  real_subscribe = cupti.subscribe;
  unsigned long long added = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        *static_cast<unsigned long long*>(data) = info->dlpi_adds;
        return 1;
      },
      &added);
  if (added == libraries_seen) return;
  libraries_seen = added;
  ::dl_iterate_phdr(watch_library, nullptr);
}

}  // namespace penstock::recorder
