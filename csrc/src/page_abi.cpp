// The C side of the control page and its gate.
#include <memory>

#include "abi.h"
#include "gate.h"
#include "page.h"

using ebb::guard;
using ebb::required;

struct ebb_gate {
  explicit ebb_gate(ebb::Page& page) : gate(page) {}
  ebb::Gate gate;
};

struct ebb_page {
  std::unique_ptr<ebb::Page> page;
};

namespace {

ebb::Page& of(ebb_page* page) { return *required(page, "page").page; }
const ebb::Page& of(const ebb_page* page) { return *required(page, "page").page; }

}  // namespace

int32_t ebb_page_create(const char* path, ebb_page** page, ebb_error* error) {
  return guard(error, [&] {
    required(page, "page") = nullptr;
    *page = new ebb_page{ebb::Page::create(ebb::path_of(path))};
  });
}

int32_t ebb_page_open(const char* path, ebb_page** page, ebb_error* error) {
  return guard(error, [&] {
    required(page, "page") = nullptr;
    *page = new ebb_page{ebb::Page::open(ebb::path_of(path))};
  });
}

void ebb_page_close(ebb_page* page) { delete page; }

int32_t ebb_page_get(const ebb_page* page, int32_t field, uint64_t* value, ebb_error* error) {
  return guard(error, [&] { required(value, "value") = of(page).get(field); });
}

int32_t ebb_page_set(ebb_page* page, int32_t field, uint64_t value, ebb_error* error) {
  return guard(error, [&] { of(page).set(field, value); });
}

int32_t ebb_page_add(ebb_page* page, int32_t field, uint64_t delta, uint64_t* value, ebb_error* error) {
  return guard(error, [&] {
    required(value, "value");
    *value = of(page).add(field, delta);
  });
}

int32_t ebb_page_open_gate(ebb_page* page, ebb_error* error) {
  return guard(error, [&] { of(page).set_admission(true); });
}

int32_t ebb_page_close_gate(ebb_page* page, ebb_error* error) {
  return guard(error, [&] { of(page).set_admission(false); });
}

int32_t ebb_page_inflight(ebb_page* page, uint64_t* inflight, ebb_error* error) {
  return guard(error, [&] { required(inflight, "inflight") = of(page).inflight(); });
}

int32_t ebb_page_publish(ebb_page* page, const ebb_measurement* measurement, ebb_error* error) {
  return guard(error, [&] { of(page).publish(required(measurement, "measurement")); });
}

int32_t ebb_page_measurement(const ebb_page* page, ebb_measurement* measurement, ebb_error* error) {
  return guard(error, [&] { required(measurement, "measurement") = of(page).measurement(); });
}

int32_t ebb_gate_register(ebb_page* page, ebb_gate** gate, ebb_error* error) {
  return guard(error, [&] {
    required(gate, "gate") = nullptr;
    *gate = new ebb_gate(of(page));
  });
}

int32_t ebb_gate_enter(ebb_gate* gate, int32_t* admitted, ebb_error* error) {
  return guard(error, [&] {
    required(admitted, "admitted") = 0;
    *admitted = required(gate, "gate").gate.enter() ? 1 : 0;
  });
}

int32_t ebb_gate_leave(ebb_gate* gate, ebb_error* error) {
  return guard(error, [&] { required(gate, "gate").gate.leave(); });
}

void ebb_gate_close(ebb_gate* gate) { delete gate; }
