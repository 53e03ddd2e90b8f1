#include <gtest/gtest.h>

#include "ebbtide.h"
TEST(A, b) {
  uint32_t c;
  ebb_error e;
  ASSERT_EQ(ebb_crc32c("123456789", 9, 0, &c, &e), 0);
  EXPECT_EQ(c, 0xE3069283u);
}
