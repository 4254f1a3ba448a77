"""The compiled inner loops of `leaf_tables`: cached on disk where any folder can be written, in memory otherwise."""

from __future__ import annotations

import numpy as np

from fedenergy.compiled import compiled


@compiled
def walk(trees, code, bits, split_from, split_feature, split_start, split_width, leaf_from, leaf_value,
         column_from, column_feature, player_from, player_column, player_mask, player_want, player_ratio):
    """Fill the tables; returns (depth, groups, splits, leaves, columns, players), depth > 8 meaning refused."""
    most = 1
    for t in range(trees.offset.size - 1):
        most = max(most, trees.offset[t + 1] - trees.offset[t])
    order, size = np.zeros(most, np.int64), np.zeros(most, np.int64)
    stack, height, came_left = np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64)
    path, path_left, path_bit = np.zeros(10, np.int64), np.zeros(10, np.int64), np.zeros(10, np.int64)
    groups = splits = leaves = columns = players = 0
    for t in range(trees.offset.size - 1):
        base = trees.offset[t]
        # Preorder, then inner nodes per subtree from the back: children always come after their parent.
        top, seen = 1, 0
        stack[0] = 0
        while top > 0:
            top -= 1
            node = stack[top]
            order[seen] = node
            seen += 1
            if trees.left[base + node] >= 0:
                stack[top], stack[top + 1] = trees.right[base + node], trees.left[base + node]
                top += 2
        for i in range(seen - 1, -1, -1):
            node = order[i]
            left = trees.left[base + node]
            size[node] = 0 if left < 0 else 1 + size[left] + size[trees.right[base + node]]
        if seen == 1:
            continue                                                       # a lone leaf explains nothing
        top, group_depth = 1, -1
        stack[0], height[0], came_left[0] = 0, 0, 0
        while top > 0:
            top -= 1
            node, depth = stack[top], height[top]
            if depth > 0:
                path_left[depth - 1] = came_left[top]
            leaf = trees.left[base + node] < 0
            if depth > 8 or (depth == 8 and not leaf):
                return 9, 0, 0, 0, 0, 0
            if depth <= group_depth:
                group_depth = -1
            if group_depth < 0 and (depth + size[node] <= bits or size[node] <= 1):
                group_depth = depth
                for j in range(depth):
                    _put_split(trees, code, base + path[j], splits + j, split_feature, split_start, split_width)
                    path_bit[j] = j
                splits += depth
                groups += 1
                split_from[groups] = splits
                leaf_from[groups] = leaves
                column_from[groups] = columns
            if not leaf:
                path[depth] = node
                if group_depth >= 0:
                    _put_split(trees, code, base + node, splits, split_feature, split_start, split_width)
                    path_bit[depth] = splits - split_from[groups - 1]
                    splits += 1
                    split_from[groups] = splits
                stack[top], height[top], came_left[top] = trees.right[base + node], depth + 1, 0
                stack[top + 1], height[top + 1], came_left[top + 1] = trees.left[base + node], depth + 1, 1
                top += 2
                continue
            leaf_value[leaves] = trees.threshold[base + node]
            first = players
            for j in range(depth):
                parent = base + path[j]
                child = base + (trees.left[parent] if path_left[j] else trees.right[parent])
                whole = np.float64(trees.cover[parent])                     # float32 division would cost six digits
                ratio = trees.cover[child] / whole if whole > 0 else 0.0
                column = column_from[groups - 1]
                while column < columns and column_feature[column] != trees.feature[parent]:
                    column += 1
                if column == columns:
                    column_feature[column] = trees.feature[parent]
                    columns += 1
                    column_from[groups] = columns
                column -= column_from[groups - 1]
                p = first
                while p < players and player_column[p] != column:
                    p += 1
                if p == players:
                    player_column[p], player_ratio[p] = column, 1.0
                    players += 1
                player_ratio[p] *= ratio
                player_mask[p] |= 1 << path_bit[j]
                player_want[p] |= path_left[j] << path_bit[j]
            leaves += 1
            leaf_from[groups] = leaves
            player_from[leaves] = players
    return 0, groups, splits, leaves, columns, players


@compiled
def _put_split(trees, code, node, slot, split_feature, split_start, split_width):
    """One byte test for x < threshold: bins 0 to code go left; where missing goes left, the range starts at 255."""
    missing_left = trees.default_left[node]
    split_feature[slot] = trees.feature[node]
    split_start[slot] = 255 if missing_left else 0
    split_width[slot] = code[node] + (1 if missing_left else 0)


@compiled
def bin_rows(X, cut_from, cuts, codes):
    for f in range(X.shape[1]):
        first, last = cut_from[f], cut_from[f + 1]
        for i in range(X.shape[0]):
            x = X[i, f]
            if np.isnan(x):
                codes[f, i] = 255
                continue
            low, high = first, last
            while low < high:
                middle = (low + high) >> 1
                if cuts[middle] <= x:
                    low = middle + 1
                else:
                    high = middle
            codes[f, i] = low - first


@compiled
def _patterns(tables, group, codes, pattern):
    """Every row's answers to the group's splits, one bit each; byte arithmetic, so that it runs 32 rows at a time."""
    first = tables.split_from[group]
    for s in range(first, tables.split_from[group + 1]):
        x, start, width = codes[tables.split_feature[s]], tables.split_start[s], tables.split_width[s]
        bit = np.uint8(1 << (s - first))
        if s == first:
            for i in range(pattern.size):
                pattern[i] = bit if np.uint8(x[i] - start) <= width else np.uint8(0)
        else:
            for i in range(pattern.size):
                pattern[i] |= bit if np.uint8(x[i] - start) <= width else np.uint8(0)


@compiled
def _group_table(tables, group, nodes, weights, table, satisfied, product, integral):
    """table[column, pattern] = phi summed over the group's leaves; every leaf by quadrature over its own answers."""
    patterns = 1 << (tables.split_from[group + 1] - tables.split_from[group])
    columns = tables.column_from[group + 1] - tables.column_from[group]
    table[:columns, :patterns] = 0.0
    for leaf in range(tables.leaf_from[group], tables.leaf_from[group + 1]):
        first = tables.player_from[leaf]
        m = tables.player_from[leaf + 1] - first
        satisfied[:patterns] = 0
        for j in range(m):
            mask, want, bit = tables.player_mask[first + j], tables.player_want[first + j], np.uint8(1 << j)
            for p in range(patterns):
                satisfied[p] |= bit if (np.uint8(p) & mask) == want else np.uint8(0)
        rule = (m + 1) // 2
        for k in range(m):
            half = 1 << (m - 1)
            integral[:half] = 0.0
            for q in range(rule):
                u = nodes[rule - 1, q]
                product[0] = weights[rule - 1, q]
                size = 1
                for j in range(m):
                    if j == k:
                        continue
                    absent = tables.player_ratio[first + j] * (1.0 - u)
                    present = absent + u
                    for p in range(size):
                        product[p + size] = product[p] * present
                        product[p] *= absent
                    size *= 2
                for p in range(half):
                    integral[p] += product[p]
            ratio = tables.player_ratio[first + k]
            yes, no = tables.leaf_value[leaf] * (1.0 - ratio), -tables.leaf_value[leaf] * ratio
            below = (1 << k) - 1
            row = table[tables.player_column[first + k]]
            for p in range(patterns):
                z = np.int64(satisfied[p])
                others = (z & below) | ((z >> 1) & ~below)
                row[p] += integral[others] * (yes if (z >> k) & 1 else no)


@compiled
def add_shap(tables, codes, nodes, weights, phi):
    pattern = np.zeros(codes.shape[1], np.uint8)
    table, satisfied = np.zeros((8, 256)), np.zeros(256, np.uint8)
    product, integral = np.zeros(256), np.zeros(256)
    for group in range(tables.split_from.size - 1):
        _patterns(tables, group, codes, pattern)
        _group_table(tables, group, nodes, weights, table, satisfied, product, integral)
        first = tables.column_from[group]
        for column in range(tables.column_from[group + 1] - first):
            out, row = phi[tables.column_feature[first + column]], table[column]
            for i in range(pattern.size):
                out[i] += row[pattern[i]]


@compiled
def add_weighted(tables, codes, nodes, weights, channels, by_channel, sums):
    """Histograms in four lanes (channels), twice (even and odd rows): equal neighbours need not wait for each other."""
    n, zero = codes.shape[1], by_channel.shape[0] - 1
    pattern = np.zeros(n, np.uint8)
    table, satisfied = np.zeros((8, 256)), np.zeros(256, np.uint8)
    product, integral = np.zeros(256), np.zeros(256)
    even, odd = np.zeros((256, 4)), np.zeros((256, 4))
    lane_channel = np.zeros(12, np.int64)
    for group in range(tables.split_from.size - 1):
        first, last = tables.column_from[group], tables.column_from[group + 1]
        lanes = 0
        for column in range(first, last):
            channel = channels[tables.column_feature[column]]
            lane = 0 if channel >= 0 else lanes
            while lane < lanes and lane_channel[lane] != channel:
                lane += 1
            if channel >= 0 and lane == lanes:
                lane_channel[lanes] = channel
                lanes += 1
        if lanes == 0:
            continue
        _patterns(tables, group, codes, pattern)
        _group_table(tables, group, nodes, weights, table, satisfied, product, integral)
        patterns = 1 << (tables.split_from[group + 1] - tables.split_from[group])
        lane_channel[lanes:] = zero
        for start in range(0, lanes, 4):
            w0, w1 = by_channel[lane_channel[start]], by_channel[lane_channel[start + 1]]
            w2, w3 = by_channel[lane_channel[start + 2]], by_channel[lane_channel[start + 3]]
            even[:patterns] = 0.0
            odd[:patterns] = 0.0
            for i in range(0, n - 1, 2):
                h, g = even[pattern[i]], odd[pattern[i + 1]]
                a0, a1, a2, a3 = h[0] + w0[i], h[1] + w1[i], h[2] + w2[i], h[3] + w3[i]
                b0, b1, b2, b3 = g[0] + w0[i + 1], g[1] + w1[i + 1], g[2] + w2[i + 1], g[3] + w3[i + 1]
                h[0], h[1], h[2], h[3] = a0, a1, a2, a3
                g[0], g[1], g[2], g[3] = b0, b1, b2, b3
            if n & 1:
                h = even[pattern[n - 1]]
                h[0] += w0[n - 1]
                h[1] += w1[n - 1]
                h[2] += w2[n - 1]
                h[3] += w3[n - 1]
            for column in range(first, last):
                channel = channels[tables.column_feature[column]]
                for lane in range(4):
                    if channel >= 0 and lane_channel[start + lane] == channel:
                        row, total = table[column - first], 0.0
                        for p in range(patterns):
                            total += (even[p, lane] + odd[p, lane]) * row[p]
                        sums[channel] += total
