// Sets UCX up for this process. There is one context for each set of settings. It is kept until the process ends, because it opens the devices.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "library.hpp"

namespace echo_rdma {

// `refused` returns the names of settings that this version of UCX does not know.
inline ucp::Context *open_context(const std::vector<std::pair<std::string, std::string>> &settings, std::string &refused) {
    const Library &ucx = library();
    ucp::Config *config = nullptr;
    ucp::status status = ucx.config_read(nullptr, nullptr, &config);
    if (status != ucp::OK) throw std::runtime_error("UCX cannot read its settings (UCX_* variables): " + text_of(status));
    for (auto &[name, value] : settings)
        if (ucx.config_modify(config, name.c_str(), value.c_str()) != ucp::OK) refused += (refused.empty() ? "" : ", ") + name + "=" + value;
    ucp::Params params{};
    params.mask = params.FEATURES | params.SHARED_WORKERS | params.NAME;
    params.features = ucp::FEATURE_AM | ucp::FEATURE_WAKEUP;
    params.shared_workers = 1;
    params.name = "echo";
    ucp::Context *context = nullptr;
    status = ucx.init_version(1, 15, &params, config, &context);
    ucx.config_release(config);
    if (status != ucp::OK) throw std::runtime_error("UCX finds no way to communicate (UCX_TLS, UCX_NET_DEVICES): " + text_of(status));
    return context;
}

} // namespace echo_rdma
