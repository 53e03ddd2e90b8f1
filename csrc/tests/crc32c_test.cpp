#include "crc32c.h"

#include <string>

#include "support.h"

namespace {

using ebb::crc32c;
using ebb_test::Bytes;
using ebb_test::random_bytes;

uint32_t by_definition(const Bytes& bytes, uint32_t seed) {
  uint32_t crc = ~seed;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
  }
  return ~crc;
}

struct Way {
  const char* name;
  ebb::Crc32cWay way;
  uint32_t (*run)(const void*, size_t, uint32_t) noexcept;
};

class Crc32cWays : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (!ebb::crc32c_has(GetParam().way)) GTEST_SKIP() << "this processor has no " << GetParam().name;
  }
};

TEST_P(Crc32cWays, KnowsTheNumbersOfRfc3720) {
  const std::string digits = "123456789";
  EXPECT_EQ(GetParam().run(digits.data(), digits.size(), 0), 0xE3069283U);
  EXPECT_EQ(GetParam().run(Bytes(32, 0x00).data(), 32, 0), 0x8A9136AAU);
  EXPECT_EQ(GetParam().run(Bytes(32, 0xFF).data(), 32, 0), 0x62A8AB43U);
  EXPECT_EQ(GetParam().run(nullptr, 0, 0), 0U);
  EXPECT_EQ(GetParam().run(nullptr, 0, 77), 77U);
}

// Around every size at which an inner loop begins or ends.
TEST_P(Crc32cWays, FollowsTheDefinitionAtEverySize) {
  for (const size_t around : {0U, 8U, 768U, 7168U, 12288U, 14336U, 12288U + 7168U + 768U}) {
    for (size_t size = around < 9 ? 0 : around - 9; size < around + 9; ++size) {
      const Bytes bytes = random_bytes(size, static_cast<uint32_t>(size));
      ASSERT_EQ(GetParam().run(bytes.data(), size, 0x1234U), by_definition(bytes, 0x1234U)) << size;
    }
  }
}

TEST_P(Crc32cWays, DoesNotCareAboutAlignment) {
  const Bytes bytes = random_bytes(30000);
  for (size_t shift = 0; shift < 64; ++shift) {
    const Bytes part(bytes.begin() + static_cast<long>(shift), bytes.end());
    ASSERT_EQ(GetParam().run(bytes.data() + shift, bytes.size() - shift, 0), by_definition(part, 0)) << shift;
  }
}

TEST_P(Crc32cWays, CarriesOn) {
  const Bytes bytes = random_bytes(50000);
  const uint32_t whole = GetParam().run(bytes.data(), bytes.size(), 0);
  for (size_t cut = 0; cut <= bytes.size(); cut += 3571) {
    const uint32_t first = GetParam().run(bytes.data(), cut, 0);
    ASSERT_EQ(GetParam().run(bytes.data() + cut, bytes.size() - cut, first), whole) << cut;
  }
}

TEST_P(Crc32cWays, SeesEveryFlippedBit) {
  Bytes bytes = random_bytes(7200);
  const uint32_t before = GetParam().run(bytes.data(), bytes.size(), 0);
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 13) {
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
    ASSERT_NE(GetParam().run(bytes.data(), bytes.size(), 0), before) << bit;
    bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1U << (bit % 8)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Crc32cWays,
                         testing::Values(Way{"Portable", ebb::Crc32cWay::kPortable, ebb::crc32c_portable},
                                         Way{"ThreeStreams", ebb::Crc32cWay::kThreeStreams,
                                             ebb::crc32c_three},
                                         Way{"FourStreams", ebb::Crc32cWay::kFourStreams, ebb::crc32c_four},
                                         Way{"Chosen", ebb::Crc32cWay::kPortable, ebb::crc32c}),
                         [](const auto& way) { return way.param.name; });

TEST(Crc32c, CombinesTwoResults) {
  const Bytes bytes = random_bytes(10000);
  const uint32_t whole = crc32c(bytes.data(), bytes.size(), 0);
  for (const size_t cut : {0U, 1U, 4096U, 9999U, 10000U}) {
    const uint32_t first = crc32c(bytes.data(), cut, 0);
    const uint32_t second = crc32c(bytes.data() + cut, bytes.size() - cut, 0);
    EXPECT_EQ(ebb::crc32c_combine(first, second, bytes.size() - cut), whole);
  }
}

TEST(Crc32c, TheCFunctionChecksItsPointers) {
  uint32_t crc = 0;
  EXPECT_STATUS(EBB_OK, ebb_crc32c("123456789", 9, 0, &crc, &error));
  EXPECT_EQ(crc, 0xE3069283U);
  EXPECT_STATUS(EBB_OK, ebb_crc32c(nullptr, 0, 5, &crc, &error));
  EXPECT_EQ(crc, 5U);
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_crc32c(nullptr, 1, 0, &crc, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_crc32c("x", 1, 0, nullptr, &error));
  EXPECT_EQ(ebb_crc32c("x", 1, 0, nullptr, nullptr), EBB_INVALID_ARGUMENT);
}

}  // namespace
