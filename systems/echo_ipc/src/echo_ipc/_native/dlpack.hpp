// Finds the memory of a tensor by DLPack's table of C functions (https://dmlc.github.io/dlpack/latest/, `__dlpack_c_exchange_api__`; torch has had it since
// 2.10). One call replaces six calls through Python, and makes no objects. The layouts below are those of DLPack 1.
#pragma once

#include <cstdint>

namespace echo_ipc::dlpack {

constexpr const char *kCapsule = "dlpack_exchange_api";
constexpr int32_t kCpu = 1;

struct Tensor {
    void *data;
    int32_t device, device_number;
    int32_t dimensions;
    uint8_t code, bits;  // the kind of number and its size
    uint16_t lanes;
    int64_t *shape, *strides;  // strides: in elements; nullptr if there are no gaps
    uint64_t offset;           // bytes from `data`
};

struct Api {
    struct Version {
        uint32_t major, minor;
    } version;
    Api *older;
    void *allocate, *to_managed, *from_managed;
    int (*look)(void *object, Tensor *out);  // `out` is valid while the object lives and is unchanged; -1 with an exception
    void *stream;
};

// The functions that this file knows; nullptr if the framework has other ones.
inline const Api *usable(const Api *api) {
    while (api && api->version.major > 1) api = api->older;
    return api && api->version.major == 1 && api->look ? api : nullptr;
}

// The code of a kind of numpy's dtypes ('f', 'i', 'u', 'b'); -1 for others.
inline int code_of(char kind) {
    switch (kind) {
        case 'i': return 0;
        case 'u': return 1;
        case 'f': return 2;
        case 'b': return 6;
        default: return -1;
    }
}

// Whether the elements lie one after another, in the order of their indices.
inline bool packed(const Tensor &tensor) {
    if (!tensor.strides) return true;
    int64_t step = 1;
    bool gaps = false;
    for (int32_t d = tensor.dimensions; d-- > 0;) {
        if (tensor.shape[d] == 0) return true;
        gaps |= tensor.shape[d] != 1 && tensor.strides[d] != step;
        step *= tensor.shape[d];
    }
    return !gaps;
}

}  // namespace echo_ipc::dlpack
