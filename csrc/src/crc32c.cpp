#include "crc32c.h"

#include <array>
#include <cstring>

#include "abi.h"

namespace ebb {

namespace {

using Table = std::array<uint32_t, 256>;

constexpr Table first_table() noexcept {
  Table table = {};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kPolynomial : 0U);
    table[byte] = crc;
  }
  return table;
}

// Table k advances a byte over k more bytes, so that eight bytes are looked up at once.
constexpr std::array<Table, 8> slicing_tables() noexcept {
  std::array<Table, 8> tables = {};
  tables[0] = first_table();
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFFU];
    }
  }
  return tables;
}

constexpr auto kTables = slicing_tables();

uint32_t eight_bytes(uint32_t crc, const unsigned char* bytes) noexcept {
  uint32_t next = 0;
  for (size_t i = 0; i < 4; ++i) next ^= kTables[7 - i][((crc >> (8 * i)) & 0xFFU) ^ bytes[i]];
  for (size_t i = 4; i < 8; ++i) next ^= kTables[7 - i][bytes[i]];
  return next;
}

}  // namespace

uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t seed) noexcept {
  const auto* cursor = static_cast<const unsigned char*>(data);
  uint32_t crc = ~seed;
  for (; bytes >= 8; bytes -= 8, cursor += 8) crc = eight_bytes(crc, cursor);
  for (; bytes != 0; --bytes, ++cursor) crc = (crc >> 8) ^ kTables[0][(crc ^ *cursor) & 0xFFU];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t seed) noexcept {
  if (crc32c_has(Crc32cWay::kFourStreams)) return crc32c_four(data, bytes, seed);
  if (crc32c_has(Crc32cWay::kThreeStreams)) return crc32c_three(data, bytes, seed);
  return crc32c_portable(data, bytes, seed);
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes) noexcept {
  return multiply(power_of_x(8 * second_bytes), first) ^ second;
}

}  // namespace ebb

int32_t ebb_crc32c(const void* data, uint64_t bytes, uint32_t seed, uint32_t* crc, ebb_error* error) {
  return ebb::guard(error, [&] {
    if (bytes != 0) ebb::required(static_cast<const char*>(data), "data");
    ebb::required(crc, "crc") = ebb::crc32c(data, bytes, seed);
  });
}

int32_t ebb_crc32c_is_hardware(void) { return ebb::crc32c_has(ebb::Crc32cWay::kThreeStreams) ? 1 : 0; }
