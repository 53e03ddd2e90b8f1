#include "park_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cstddef>

#include "crc32c.h"
#include "status.h"

namespace ebb {

namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kMostSpan = uint64_t{1} << 46;

constexpr uint64_t chunks_of(uint64_t span) noexcept { return (span + kChunk - 1) / kChunk; }

constexpr uint64_t data_offset_of(uint64_t chunks) noexcept {
  return (kBlock + chunks * sizeof(uint32_t) + kBlock - 1) / kBlock * kBlock;
}

uint32_t crc_of(const ParkHeader& header) noexcept {
  return crc32c(&header, offsetof(ParkHeader, header_crc), 0);
}

// A file can say anything and still match its checksum: every number is checked before it is used.
bool consistent(const ParkHeader& header) noexcept {
  return header.header_bytes == sizeof(ParkHeader) && header.chunk_bytes == kChunk &&
         header.span <= kMostSpan && header.chunks == chunks_of(header.span) &&
         header.data_offset == data_offset_of(header.chunks);
}

ParkHeader read_header(int fd, const std::string& path) {
  ParkHeader header = {};
  const uint64_t got = read_at(fd, &header, sizeof header, 0, path);
  if (got < sizeof header.magic || header.magic != kParkMagic) fail(EBB_FOREIGN, path + " is no parked copy");
  if (got < sizeof header) fail(EBB_TRUNCATED, path + " ends within its header");
  if (header.abi != EBB_ABI_VERSION) {
    fail(EBB_WRONG_ABI, path + " is a parked copy of ABI " + std::to_string(header.abi) +
                            ", this library has " + std::to_string(EBB_ABI_VERSION));
  }
  if (header.header_crc != crc_of(header))
    fail(EBB_CORRUPT, path + ": the header does not match its checksum");
  if (!consistent(header)) fail(EBB_CORRUPT, path + ": the header contradicts itself");
  return header;
}

uint32_t crc_of(const std::vector<uint32_t>& table) noexcept {
  return crc32c(table.data(), table.size() * sizeof(uint32_t), 0);
}

}  // namespace

uint64_t ParkFile::chunk_length(uint64_t chunk) const noexcept {
  return std::min(kChunk, header.span - chunk * kChunk);
}

uint64_t ParkFile::chunk_place(uint64_t chunk) const noexcept { return header.data_offset + chunk * kChunk; }

ParkHeader park_header(uint64_t version, uint64_t layout, uint64_t span) noexcept {
  ParkHeader header = {};
  header.magic = kParkMagic;
  header.abi = EBB_ABI_VERSION;
  header.header_bytes = sizeof(ParkHeader);
  header.version = version;
  header.layout = layout;
  header.span = span;
  header.chunk_bytes = kChunk;
  header.chunks = chunks_of(span);
  header.data_offset = data_offset_of(header.chunks);
  return header;
}

void check_size(const ParkFile& park) {
  const uint64_t size = file_size(park.file.fd(), park.path);
  if (size == park.file_bytes()) return;
  fail(EBB_TRUNCATED, park.path + " has " + std::to_string(size) + " bytes, its header says " +
                          std::to_string(park.file_bytes()));
}

ParkFile open_park_file(const std::string& path) {
  File file = open_regular(path, O_RDONLY);
  const ParkHeader header = read_header(file.fd(), path);
  ParkFile park{path, std::move(file), header, {}, {}};
  check_size(park);
  park.table.resize(header.chunks);  // bounded by the file's true size, just checked
  const uint64_t bytes = header.chunks * sizeof(uint32_t);
  if (read_at(park.file.fd(), park.table.data(), bytes, kBlock, path) != bytes) {
    fail(EBB_TRUNCATED, path + " ends within its checksums");
  }
  if (crc_of(park.table) != header.table_crc)
    fail(EBB_CORRUPT, path + ": the checksums do not match their own");
  park.map = Mapping::of_memory_file(park.file.fd(), park.file_bytes());
  return park;
}

void write_park_head(int fd, ParkFile& park) {
  park.header.table_crc = crc_of(park.table);
  park.header.header_crc = crc_of(park.header);
  write_at(fd, park.table.data(), park.table.size() * sizeof(uint32_t), kBlock, park.path);
  write_at(fd, &park.header, sizeof park.header, 0, park.path);
}

}  // namespace ebb
