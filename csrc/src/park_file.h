// The file of a parked copy: a header, a table of checksums, then the bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ebbtide.h"
#include "file.h"
#include "mapping.h"

namespace ebb {

constexpr uint64_t kChunk = uint64_t{4} << 20;
constexpr uint64_t kParkMagic = 0x314B524150424245;  // "EBBPARK1" in memory order

struct ParkHeader {
  uint64_t magic;
  uint32_t abi;
  uint32_t header_bytes;
  uint64_t version;
  uint64_t layout;
  uint64_t span;
  uint64_t chunk_bytes;
  uint64_t chunks;
  uint64_t data_offset;
  uint32_t table_crc;
  uint32_t header_crc;  // of all before it
};
static_assert(sizeof(ParkHeader) == 72, "the layout is an ABI");

ParkHeader park_header(uint64_t version, uint64_t layout, uint64_t span) noexcept;

struct ParkFile {
  std::string path;
  File file;
  ParkHeader header;
  std::vector<uint32_t> table;
  Mapping map;  // of all of it, where the file is in memory

  [[nodiscard]] uint64_t chunk_length(uint64_t chunk) const noexcept;
  [[nodiscard]] uint64_t chunk_place(uint64_t chunk) const noexcept;
  [[nodiscard]] uint64_t file_bytes() const noexcept { return header.data_offset + header.span; }
};

// EBB_TRUNCATED when the file does not have the size that its header says.
void check_size(const ParkFile& park);
// Checks the header, the table and the size: all but the chunks.
ParkFile open_park_file(const std::string& path);
// Seals and writes table and header, after the chunks.
void write_park_head(int fd, ParkFile& park);

}  // namespace ebb
