// libheadrace_cuda.so itself: what it exports, which GPUs it has code for, and what it says where there is no GPU.

#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/library.h"

namespace headrace::kernels {
namespace {

std::string library_path;

template <class T>
T At(const std::string& file, size_t offset) {
  T value = {};
  if (offset + sizeof value <= file.size()) std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Section {
  std::string name;
  Elf64_Shdr header;
};

std::vector<Section> Sections(const std::string& file) {
  const auto elf = At<Elf64_Ehdr>(file, 0);
  auto header = [&](size_t i) { return At<Elf64_Shdr>(file, elf.e_shoff + i * elf.e_shentsize); };
  const Elf64_Shdr names = header(elf.e_shstrndx);
  std::vector<Section> sections;
  for (size_t i = 0; i < elf.e_shnum; ++i) {
    sections.push_back({file.data() + names.sh_offset + header(i).sh_name, header(i)});
  }
  return sections;
}

// Machine code ("sm_80") and PTX ("compute_100") in one compilation's kernels.
using Targets = std::set<std::string>;

// The fat binaries of the library, one for each .cu file with kernels. Their format has no public description; it was
// read off cuobjdump's output: a header of 16 bytes (magic, u16 version, u16 header's size, u64 size of what follows)
// and entries (u16 kind, 1 PTX or 2 machine code; u16 version; u32 header's size; u64 payload's size; u32 architecture
// at byte 28).
std::vector<Targets> FatBinaries(const std::string& file) {
  std::vector<Targets> all;
  for (const Section& section : Sections(file)) {
    if (section.name != ".nv_fatbin") continue;
    const size_t end = section.header.sh_offset + section.header.sh_size;
    for (size_t at = section.header.sh_offset; at + 16 <= end;) {
      if (At<uint32_t>(file, at) != 0xBA55ED50u) {
        at += 8;  // padding between them
        continue;
      }
      const size_t stop = at + At<uint16_t>(file, at + 6) + At<uint64_t>(file, at + 8);
      Targets targets;
      for (at += At<uint16_t>(file, at + 6); at + 32 <= stop;) {
        const auto kind = At<uint16_t>(file, at);
        targets.insert((kind == 1 ? "compute_" : "sm_") + std::to_string(At<uint32_t>(file, at + 28)));
        at += At<uint32_t>(file, at + 4) + At<uint64_t>(file, at + 8);
      }
      at = stop;
      all.push_back(targets);
    }
  }
  return all;
}

TEST(CudaLibraryTest, HasCodeForEachGpu) {
  const std::vector<Targets> all = FatBinaries(ReadFile(library_path));
  EXPECT_GE(all.size(), 3u);  // copies, elementwise, quantization
  for (const Targets& targets : all) EXPECT_EQ(targets, (Targets{"sm_80", "sm_90", "sm_100", "compute_100"}));
}

TEST(CudaLibraryTest, ExportsItsInterfaceAlone) {
  const std::string file = ReadFile(library_path);
  std::set<std::string> exported, needed;
  const std::vector<Section> sections = Sections(file);
  for (const Section& section : sections) {
    const size_t names =
        section.header.sh_link < sections.size() ? sections[section.header.sh_link].header.sh_offset : 0;
    if (section.header.sh_type == SHT_DYNSYM) {
      for (size_t i = 0; i < section.header.sh_size / sizeof(Elf64_Sym); ++i) {
        const auto symbol = At<Elf64_Sym>(file, section.header.sh_offset + i * sizeof(Elf64_Sym));
        if (symbol.st_shndx != SHN_UNDEF) exported.insert(file.data() + names + symbol.st_name);
      }
    }
    if (section.header.sh_type == SHT_DYNAMIC) {
      for (size_t i = 0; i < section.header.sh_size / sizeof(Elf64_Dyn); ++i) {
        const auto entry = At<Elf64_Dyn>(file, section.header.sh_offset + i * sizeof(Elf64_Dyn));
        if (entry.d_tag == DT_NEEDED) needed.insert(file.data() + names + entry.d_un.d_val);
      }
    }
  }
  EXPECT_EQ(exported, std::set<std::string>{HEADRACE_KERNELS_SYMBOL});
  for (const std::string& library : needed) EXPECT_EQ(library.find("cuda"), std::string::npos) << library;
}

TEST(CudaLibraryTest, SaysWhatIsMissing) {
  const KernelLibrary library = LoadKernelLibrary(library_path);
  ASSERT_EQ(library.error, LibraryError::kNone) << library.message;
  EXPECT_EQ(LoadKernelLibrary(library_path).kernels, library.kernels);
  int32_t count = -1;
  HeadraceKernelError error = {};
  if (library.kernels->device_count(&count, &error) == 0 && count > 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_NE(error.code, 0);
  EXPECT_NE(std::string(error.text).find("cudaGetDeviceCount"), std::string::npos) << error.text;
  const HeadraceLaunch launch = {0, nullptr};
  const HeadraceTable empty = {nullptr, nullptr, 0, 0}, table = {nullptr, nullptr, 1, 1};
  EXPECT_EQ(library.kernels->copy(&launch, &empty, nullptr, &error), 0);
  for (auto* function : {library.kernels->elementwise, library.kernels->block_maxima, library.kernels->quantize}) {
    error = {};
    EXPECT_NE(function(&launch, &table, &error), 0);
    EXPECT_NE(error.text[0], 0);
  }
}

TEST(LibraryTest, WhatIsNoLibraryIsAnError) {
  const KernelLibrary absent = LoadKernelLibrary("/nonexistent/libheadrace_cuda.so");
  EXPECT_EQ(absent.error, LibraryError::kNotLoaded);
  EXPECT_EQ(absent.kernels, nullptr);
  EXPECT_NE(absent.message.find("/nonexistent/libheadrace_cuda.so"), std::string::npos);
  EXPECT_EQ(LoadKernelLibrary("libm.so.6").error, LibraryError::kForeign);
}

}  // namespace
}  // namespace headrace::kernels

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) headrace::kernels::library_path = std::string("./") + argv[1];
  return RUN_ALL_TESTS();
}
